package qemu

// Command runs a command of the monitor, as whoever owns the machine does.
func (m *Machine) Command(command string) error { return m.mon.run(command, nil, nil) }

// Status is QEMU's word for the machine's state.
func (m *Machine) Status() (string, error) {
	_, status, err := m.mon.running()
	return status, err
}
