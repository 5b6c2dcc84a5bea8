package amd64

// GoInt is where r has the nth integer word of arguments or results by Go's ABIInternal, in the order of goWords. Precondition: n is
// below 9.
func GoInt(r *Regs, n int) *uint64 {
	switch n {
	case 0:
		return &r.AX
	case 1:
		return &r.BX
	case 2:
		return &r.CX
	case 3:
		return &r.DI
	case 4:
		return &r.SI
	case 5:
		return &r.R8
	case 6:
		return &r.R9
	case 7:
		return &r.R10
	}
	return &r.R11
}

// GoFloat is where r has the nth floating-point number, in the lowest bytes. Precondition: n is below 15.
func GoFloat(r *Regs, n int) *uint64 { return &r.X[n][0] }
