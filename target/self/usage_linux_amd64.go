package self

// CodeUsed is the number of bytes of generated code that are taken at present. Detours of
// probes that were taken out count until no thread can be in them, which is looked at when
// a handler ends or something else changes.
func (t *Target) CodeUsed() (n uint64) {
	t.codeMu.Lock()
	defer t.codeMu.Unlock()
	for _, c := range t.code {
		n += c.Used()
	}
	return n
}
