package amd64

import (
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/ring"
)

// fill emits the stores of everything after the header into the record at rec. It
// clobbers RAX, and for what is written under the locked protocol RDX and S1.
func (f *frame) fill(s *storing, rec Reg) {
	off := int32(ring.RecHeader)
	if f.w.Go != nil {
		f.goID(s)
		f.MovMR(8, At(rec, off), RAX)
		off += 8
	}
	switch s.w.Role {
	case arch.RoleExit:
		f.MovRM(8, RAX, At(RSP, f.drop))
		f.MovMR(8, At(rec, off), RAX)
	case arch.RoleLeft:
		f.MovRM(8, RAX, f.leftAt(leftReturn))
		f.MovMR(8, At(rec, off), RAX)
	}
	if s.w.Prog == nil {
		return
	}
	for i := range s.w.Prog.Args {
		f.fillArg(s, i, rec)
	}
	if s.w.Prog.Stack > 0 {
		f.stack(s, rec, s.args+int32(s.w.Prog.StackOff), s.w.Prog.Stack)
	}
}

func (f *frame) fillArg(s *storing, i int, rec Reg) {
	a := &s.w.Prog.Args[i]
	at := s.args + int32(a.Off)
	switch {
	case a.Store == fetch.StoreNone:
	case a.Store == fetch.StoreComm, a.Store == fetch.StoreSpan:
		for j := range f.w.argTemps(a) {
			f.MovRM(8, RAX, f.tempAt(s.temps[i]+j))
			f.MovMR(8, At(rec, at+8*int32(j)), RAX)
		}
	case a.Store == fetch.StoreArray && f.w.Kernel != nil:
		f.kernelArray(a, s.temps[i], rec, at)
	case a.Store == fetch.StoreArray:
		f.array(a, s, rec, at)
	case a.Store == fetch.StorePtrs:
		for j := range a.Count {
			f.copyString(a, s.temps[i]+2*j, rec, at+8*int32(j))
		}
	case isString(a):
		f.copyString(a, s.temps[i], rec, at)
	case f.w.argTemps(a) > 0:
		f.MovRM(8, RAX, f.tempAt(s.temps[i]))
		f.MovMR(8, At(rec, at), RAX)
	default:
		f.plain(a, s, rec, at)
	}
}

// plain stores a value that takes no load.
func (f *frame) plain(a *fetch.Arg, s *storing, rec Reg, at int32) {
	if r, ok := f.inPlace(a); ok {
		f.MovMR(8, At(rec, at), r)
		return
	}
	f.argBase(RAX, a, a.Base, s, Label(0))
	f.narrow(a.Size)
	f.MovMR(8, At(rec, at), RAX)
}

// inPlace gives the register that still holds the argument's whole value.
func (f *frame) inPlace(a *fetch.Arg) (Reg, bool) {
	r := Reg(a.Base.Reg)
	if a.AtEntry || a.Base.Kind != fetch.BaseReg || a.Base.Reg >= 16 || r == RSP || a.Size != 8 {
		return 0, false
	}
	_, saved := f.slots.of(r) // a register that the work clobbers
	return r, !saved
}

// goID emits RAX = the goroutine's id, 0 on a thread that has none.
func (f *frame) goID(s *storing) {
	if s.w.Role == arch.RoleLeft {
		f.MovRM(8, RAX, f.leftAt(leftG))
		f.MovRM(8, RAX, At(RAX, f.w.Go.GoID))
		return
	}
	none := f.Label()
	f.MovRM(8, RAX, AtFS(f.w.Go.TLS))
	f.TestRR(8, RAX, RAX)
	f.JccShort(CondE, none)
	f.MovRM(8, RAX, At(RAX, f.w.Go.GoID))
	f.Bind(none)
}
