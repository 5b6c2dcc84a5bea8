package amd64

import (
	"errors"
	"fmt"
	"slices"
)

// ErrExitsUnknown says that a function may be left in ways that the analysis did not
// find.
var ErrExitsUnknown = errors.New("not all exits are known")

// ExitKind is a way to leave a function.
type ExitKind uint8

// Ways to leave a function.
const (
	ExitRet          ExitKind = iota // near return
	ExitTailJmp                      // direct jump to outside
	ExitTailJcc                      // conditional branch to outside: leaves only if taken
	ExitIndirectTail                 // indirect jump to outside
	ExitTableJmp                     // indirect jump some of whose targets are outside and others inside
	ExitNoReturnCall                 // call that does not come back
	ExitTrap                         // ud2, hlt, int3 with nothing behind: no value returns
	ExitSyscall                      // system call with nothing behind (exit, sigreturn)
	ExitFallThrough                  // control runs over the end into whatever follows
)

var exitNames = [...]string{
	"return", "tail jump", "conditional tail jump", "indirect tail jump", "table jump",
	"call without return", "trap", "system call without return", "fall through the end",
}

func (k ExitKind) String() string {
	if int(k) >= len(exitNames) {
		return fmt.Sprintf("exit kind %d", uint8(k))
	}
	return exitNames[k]
}

// Exit is an instruction through which control leaves the function.
type Exit struct {
	Addr   uint64
	Kind   ExitKind
	Target uint64 // where to, if there is one place and it is known; else 0
	Swept  bool   // stands in code that no known path reaches (Flow.Reachable)
}

// Exits lists every way out in the order of addresses. reason, which wraps
// ErrExitsUnknown, is not nil if there may be others: an indirect jump that may leave or
// stay, or bytes that are reached and can't be decoded.
//
// Code that is entered in ways that neither the bytes nor Func.Entries show is covered
// as far as the sweep found it (Exit.Swept).
func (fl *Flow) Exits() ([]Exit, error) {
	return append([]Exit(nil), fl.exits...), fl.reason
}

func (fl *Flow) findExits() {
	for _, id := range fl.order {
		n := &fl.nodes[id]
		if e, ok := fl.exit(id, n); ok {
			e.Addr, e.Swept = n.addr, n.swept
			fl.exits = append(fl.exits, e)
		}
		if n.in.Kind == KindFar && !n.falls {
			fl.unresolved = append(fl.unresolved, n.addr)
		}
	}
	slices.Sort(fl.unresolved)
	fl.reason = fl.whyUnknown()
}

// exit says how n leaves the function, if it does.
func (fl *Flow) exit(id int32, n *flowNode) (Exit, bool) {
	switch n.in.Kind {
	case KindRet:
		return Exit{Kind: ExitRet}, true
	case KindJmpInd:
		return fl.jumps[fl.jumpAt[id]].exit()
	case KindJmp:
		t, ok := n.in.Target(n.addr)
		if fl.returns(n) {
			return Exit{Kind: ExitRet}, true
		}
		return Exit{Kind: ExitTailJmp, Target: t}, ok && !fl.inside(t)
	case KindJcc, KindLoop, KindXbegin:
		if t, ok := n.in.Target(n.addr); ok && !fl.inside(t) {
			return Exit{Kind: ExitTailJcc, Target: t}, true
		}
	}
	if n.falls {
		return Exit{Kind: ExitFallThrough, Target: n.end()}, !fl.inside(n.end())
	}
	return stop(n)
}

// returns says whether n is a return, or a jump that stands for one.
func (fl *Flow) returns(n *flowNode) bool {
	if n.in.Kind != KindJmp || fl.fn.Returns == nil {
		return n.in.Kind == KindRet
	}
	t, ok := n.in.Target(n.addr)
	return ok && !fl.inside(t) && fl.fn.Returns(t)
}

// stop tells the kind of an instruction that control does not go past.
func stop(n *flowNode) (Exit, bool) {
	switch n.in.Kind {
	case KindCall:
		t, _ := n.in.Target(n.addr)
		return Exit{Kind: ExitNoReturnCall, Target: t}, true
	case KindCallInd:
		return Exit{Kind: ExitNoReturnCall}, true
	case KindSyscall:
		return Exit{Kind: ExitSyscall}, true
	case KindUndef, KindHlt, KindInt3:
		return Exit{Kind: ExitTrap}, true
	}
	return Exit{}, false
}

func (fl *Flow) whyUnknown() error {
	if len(fl.unresolved) > 0 {
		a := fl.unresolved[0]
		in, _ := fl.Inst(a)
		return fmt.Errorf("%w: %s+0x%x (% x) jumps to addresses that could not be found out: probe the entry only, or return probes by trampoline",
			ErrExitsUnknown, fl.fn.Name, a-fl.fn.Addr, fl.Bytes(a, int(in.Len)))
	}
	for _, b := range fl.bad {
		return fmt.Errorf("%w: %s+0x%x is reached and cannot be decoded (%w): check the bounds of the function",
			ErrExitsUnknown, fl.fn.Name, b.addr-fl.fn.Addr, b.err)
	}
	return nil
}
