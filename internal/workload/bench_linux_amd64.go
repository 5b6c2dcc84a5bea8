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
func loopClock(n uint64, st *state)

//go:noescape
func loopTraced(n uint64, st *state)

// loops are the callers of the functions, by the names of Functions.
var loops = map[string]func(n uint64, st *state){
	"bench_lea": loopLea, "bench_endbr": loopEndbr, "bench_push": loopPush,
	"bench_nop5": loopNop5, "bench_ret": loopRet, Clock: loopClock, "bench_traced": loopTraced, Stacked: loopStacked,
}

// Symbols are the names that the functions of Functions have in a Go program. They are
// known to the assembler alone: a Go declaration would add a second function of the name,
// the wrapper for Go's own calling convention.
var Symbols = map[string]string{
	"bench_lea": prefix + "BenchLea", "bench_endbr": prefix + "BenchEndbr", "bench_push": prefix + "BenchPush",
	"bench_nop5": prefix + "BenchNop5", "bench_ret": prefix + "BenchRet", Clock: prefix + "BenchClock", "bench_traced": prefix + "BenchTraced",
	Bottom: prefix + "benchBottom",
}

const prefix = "kprobes.dev/kprobes/internal/workload."

//go:noinline
func benchBottom(a, b uint64) uint64 { return a + b }

//go:noinline
func benchDeep(a, b, n uint64) uint64 {
	if n == 0 {
		return benchBottom(a, b) + 1
	}
	return benchDeep(a, b, n-1) + 1
}

func loopStacked(n uint64, _ *state) {
	for i := range n {
		OwnSink = int(benchDeep(i, n, StackedCalls))
	}
}
