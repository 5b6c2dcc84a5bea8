package qemu

// Resume lets vCPUs run that stand still: a tracer that was killed in a stop, and its guardian
// with it, may have left them so. Those that their owner has stopped run then, too. It is to
// be called before the first stop. It says whether they stood.
func (m *Machine) Resume() (stood bool, err error) {
	_, status, err := m.mon.running()
	if err != nil || status != "paused" {
		return false, err
	}
	return true, m.mon.run("cont", nil, nil)
}
