package process

import (
	"slices"
	"testing"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/target"
)

// A change fails between its two writes, after the threads were moved: they are moved back before
// an old patch stands again, into which a new detour may lead.
func TestApplyUndone(t *testing.T) {
	prog, tg := prepared(t)
	at := plant(t, tg, 0xcc, 0x1111)
	old := &target.Site{Addr: at, Orig: []byte{0x90}, Patch: []byte{0xcc}, Detour: &arch.Detour{Addr: at + 64}}
	added := &target.Site{Addr: at + 8, Orig: []byte{0x22}, Patch: []byte{0xcc}, Detour: &arch.Detour{Addr: at + 128}} // not what stands there
	inStop(t, tg, func(s *ptrace.Stopped) error {
		th := s.Threads()[0]
		was := th.Regs()
		there := was
		there.R15++
		var writes []bool // whether the thread was there
		moved := false
		ptrace.OnStep = func(what string) {
			moved = moved || th.Regs().R15 == there.R15
			if what == "write" && moved {
				writes = append(writes, th.Regs().R15 == there.R15)
			}
		}
		err := tg.apply(s, &target.Change{Remove: []*target.Site{old}, Add: []*target.Site{added}},
			&look{apart: true, moves: []threadMove{{th, was, there}}}, entriesOf([]*target.Site{added}))
		ptrace.OnStep = nil
		if err == nil || !moved || len(writes) == 0 || slices.Contains(writes, true) || th.Regs() != was {
			t.Errorf("%v, moved: %v, written while it was: %v", err, moved, writes)
		}
		tg.faults.drop(added)
		return tg.writeFaults()
	})
	if got := planted(t, tg.p, at, 2); !slices.Equal(got, []uint64{0xcc, 0x1111}) {
		t.Errorf("%#x", got)
	}
	if err := tg.Close(); err != nil {
		t.Error(err)
	}
	prog.Counts("go 10")
}
