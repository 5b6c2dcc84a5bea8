package amd64

import "kprobes.dev/kprobes/internal/arch"

// budgetCode is (*frame).bounded.
type budgetCode func(f *frame, w *arch.ProbeOp) error

// BudgetCode is arch.Budget.Code.
func BudgetCode() any { return budgetCode((*frame).bounded) }

// bounded emits a work's storing that is bounded by a budget.
func (f *frame) bounded(w *arch.ProbeOp) error {
	done := f.Label()
	f.budget(w.Budget, done)
	err := f.storeAll(w, done)
	if w.Budget.Timed {
		f.took(w.Budget.Addr)
	}
	return err
}

// budget emits the taking of one hit from a budget (arch.BudgetHits); a hit beyond its limit goes on at over. It clobbers
// RAX and RDX. Who may be at the same words:
//
//  1. Hits on other CPUs, and in signal handlers in between: a locked addition gives each hit a number of its own, so that as many hits go
//     on as the limit says, whoever they are.
//  2. The tracer, which moves the limit up: a hit compares its number with what the limit was before or is now. Both are right.
//  3. Nobody any more, where the tracer was killed: the limit stays, and soon all hits are beyond it.
//
// A thread that ends between two instructions has a hit that is counted and not done, as one that ends a little later has.
func (f *frame) budget(b *arch.Budget, over Label) {
	beyond := f.Label()
	if b.Timed {
		f.MovMI(8, At(RSP, f.began), 0)
	}
	f.MovRI(RDX, b.Addr)
	f.MovRI(RAX, 1)
	f.Lock().Xadd(8, At(RDX, arch.BudgetHits), RAX)
	f.OpRM(OpCmp, 8, RAX, At(RDX, arch.BudgetLimit))
	f.Jcc(CondAE, beyond)
	f.after(func() {
		f.Bind(beyond)
		f.Lock().IncM(8, At(RDX, arch.BudgetOver))
		f.Jmp(over)
	})
	if b.Timed {
		f.begin()
	}
}

// begin emits the reading of the clock, if the hit of the number in RAX is to be timed.
func (f *frame) begin() {
	timed := f.Label()
	f.TestRI(1, RAX, arch.BudgetEach-1)
	f.Jcc(CondE, timed)
	on := f.Here()
	f.after(func() {
		f.Bind(timed)
		f.tsc()
		f.MovMR(8, At(RSP, f.began), RAX)
		f.Jmp(on)
	})
}

// took emits the adding of the time that a hit has taken, if it is one that begin has timed. The clock of another CPU may be behind: such a hit
// tells nothing.
func (f *frame) took(at uint64) {
	timed, on := f.Label(), f.Label()
	f.OpMI(OpCmp, 8, At(RSP, f.began), 0)
	f.Jcc(CondNE, timed)
	f.Bind(on)
	f.after(func() {
		f.Bind(timed)
		f.tsc()
		f.OpRM(OpSub, 8, RAX, At(RSP, f.began))
		f.Jcc(CondB, on)
		ok := f.Label()
		f.OpRI(OpCmp, 8, RAX, arch.BudgetLongest)
		f.JccShort(CondBE, ok)
		f.MovRI(RAX, arch.BudgetLongest)
		f.Bind(ok)
		f.MovRI(RDX, at)
		f.Lock().OpMR(OpAdd, 8, At(RDX, arch.BudgetTicks), RAX)
		f.Lock().IncM(8, At(RDX, arch.BudgetTimed))
		f.Jmp(on)
	})
}
