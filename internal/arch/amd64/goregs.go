package amd64

// GoInt is where r has the nth integer word of arguments or results by Go's ABIInternal. Precondition: n is below 9.
func GoInt(r *Regs, n int) *uint64 { return r.general()[goWords[n]] }

// GoFloat is where r has the nth floating-point number, in the lowest bytes. Precondition: n is below 15.
func GoFloat(r *Regs, n int) *uint64 { return &r.X[n][0] }
