package workload

//go:noescape
func loopLea(n uint64, st *state)

//go:noescape
func loopEndbr(n uint64, st *state)

//go:noescape
func loopPush(n uint64, st *state)

//go:noescape
func loopNop5(n uint64, st *state)

//go:noescape
func loopRet(n uint64, st *state)

//go:noescape
func loopTraced(n uint64, st *state)

// loops are the callers of the functions, by the names of Functions.
var loops = map[string]func(n uint64, st *state){
	"bench_lea": loopLea, "bench_endbr": loopEndbr, "bench_push": loopPush,
	"bench_nop5": loopNop5, "bench_ret": loopRet, "bench_traced": loopTraced,
}

// Symbols are the names that the functions of Functions have in a Go program. They are
// known to the assembler alone: a Go declaration would add a second function of the name,
// the wrapper for Go's own calling convention.
var Symbols = map[string]string{
	"bench_lea": prefix + "BenchLea", "bench_endbr": prefix + "BenchEndbr", "bench_push": prefix + "BenchPush",
	"bench_nop5": prefix + "BenchNop5", "bench_ret": prefix + "BenchRet", "bench_traced": prefix + "BenchTraced",
}

const prefix = "kprobes.dev/kprobes/internal/workload."
