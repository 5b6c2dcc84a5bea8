package amd64

import "kprobes.dev/kprobes/internal/arch"

// budget emits the taking of one hit from the budget at an address (arch.BudgetHits); a hit beyond its limit goes on at over. It clobbers
// RAX and RDX. Who may be at the same words:
//
//  1. Hits on other CPUs, and in signal handlers in between: a locked addition gives each hit a number of its own, so that as many hits go
//     on as the limit says, whoever they are.
//  2. The tracer, which moves the limit up: a hit compares its number with what the limit was before or is now. Both are right.
//  3. Nobody any more, where the tracer was killed: the limit stays, and soon all hits are beyond it.
//
// A thread that ends between two instructions has a hit that is counted and not done, as one that ends a little later has.
func (f *frame) budget(at uint64, over Label) {
	beyond := f.Label()
	f.MovRI(RDX, at)
	f.MovRI(RAX, 1)
	f.Lock().Xadd(8, At(RDX, arch.BudgetHits), RAX)
	f.OpRM(OpCmp, 8, RAX, At(RDX, arch.BudgetLimit))
	f.Jcc(CondAE, beyond)
	f.after(func() {
		f.Bind(beyond)
		f.Lock().IncM(8, At(RDX, arch.BudgetOver))
		f.Jmp(over)
	})
}
