package amd64

import "kprobes.dev/kprobes/internal/arch"

// A thread that hits a RoleWait probe tells the tracer by a record and sleeps until the
// tracer has counted up the answer. If no answer comes in time the tracer is taken for
// dead, and nobody waits again. The tracer reads the file of an object that came (libjvm, 23 MB: 0.15 s), and on a busy machine
// others run before it.
const (
	waitStep  = 200_000 // nanoseconds of one sleep
	waitSteps = 5000    // a second in all, at least
)

const sysNanosleep = 35

// Offsets from Work.Wait.
const (
	waitAnswer = 0
	waitOff    = 8
)

func (f *frame) wait(w *arch.ProbeOp) error {
	done, giveUp := f.Label(), f.Label()
	f.ifQuiet(RDX, done)
	f.MovRI(RDX, w.Wait)
	f.OpMI(OpCmp, 8, At(RDX, waitOff), 0)
	f.Jcc(CondNE, done)
	f.MovRM(8, RAX, At(RDX, waitAnswer))
	f.MovMR(8, f.tempAt(tempCur), RAX)
	if err := f.store(w); err != nil {
		return err
	}
	f.MovMI(8, f.tempAt(tempEnd), waitSteps)
	loop := f.Here()
	f.MovRI(RDX, w.Wait)
	f.MovRM(8, RAX, At(RDX, waitAnswer))
	f.OpRM(OpCmp, 8, RAX, f.tempAt(tempCur))
	f.Jcc(CondNE, done)
	f.DecM(8, f.tempAt(tempEnd))
	f.Jcc(CondE, giveUp)
	f.sleep()
	f.Jmp(loop)
	f.Bind(done)
	f.after(func() {
		f.Bind(giveUp)
		f.Lock().OpMI(OpOr, 8, At(RDX, waitOff), arch.WaitedInVain)
		f.Jmp(done)
	})
	return nil
}

// sleep emits nanosleep({0, waitStep}, NULL). All registers keep their values.
func (f *frame) sleep() {
	for _, r := range checkSaved {
		f.Push(r)
	}
	f.MovRI(RAX, waitStep)
	f.Push(RAX)
	f.MovRI(RAX, 0)
	f.Push(RAX)
	f.MovRR(8, RDI, RSP)
	f.MovRI(RSI, 0)
	f.MovRI(RAX, sysNanosleep)
	f.Syscall()
	f.Lea(RSP, At(RSP, 16))
	for i := len(checkSaved) - 1; i >= 0; i-- {
		f.Pop(checkSaved[i])
	}
}
