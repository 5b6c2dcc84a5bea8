package ptrace

import "testing"

// What is asked of a thread's mapping is answered by the list of all where the kernel does not answer. That nothing is
// known is an error: a stack that is taken for none would not be searched, and code unmapped that it returns to.
func TestMappingsWithoutQuery(t *testing.T) {
	p := run(t, build(t, "live"), "3").open()
	s := stop(t, p)
	defer release(t, s)
	f := s.queries()
	if f == nil {
		t.Skip("the kernel can not be asked for single mappings (Linux 6.11)")
	}
	th := s.Threads()[0]
	want, ok, err := s.mapAt(th.regs.RSP)
	if !ok || err != nil {
		t.Fatalf("stack: %v, %v", ok, err)
	}
	files, err := s.FileMaps()
	if err != nil {
		t.Fatal(err)
	}
	s.files = nil
	f.Close() // what it is asked fails
	if m, ok, err := s.mapAt(th.regs.RSP); !ok || err != nil || m.Start != want.Start || m.End != want.End {
		t.Errorf("stack: %x, %v, %v; want %x", m.Start, ok, err, want.Start)
	}
	s.maps = nil
	all, err := s.FileMaps()
	if err != nil || len(all) < len(files) {
		t.Errorf("%d mappings, %d of them of files: %v", len(all), len(files), err)
	}
	s.maps, s.p = nil, &Process{pid: s.p.pid, closed: true} // nor is there a list
	defer func() { s.p = p }()
	if lo, hi, err := s.liveStack(th, false); err == nil {
		t.Errorf("a stack of which nothing is known is searched from 0x%x to 0x%x", lo, hi)
	}
}
