package process

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/testprog"
)

// A process that writes anything into its mailbox makes the tracer run handlers that there
// are, with registers that are none, and nothing else.
func TestMailboxHostile(t *testing.T) {
	mem := ownMail(t)
	const addr = 0x7f0000000000
	m := newMailSide(run(t, build(t, "hold")).open().Process, mem, addr)
	var runs, wrong atomic.Uint64
	handler := func(_ *amd64.Regs, instance uint64) arch.Action {
		runs.Add(1)
		return arch.Action(instance) // also what is none
	}
	var calls []*arch.Call
	for range 4 {
		c, err := m.Add(&target.Handler{Run: handler, Fault: func(*amd64.Regs, int, fmt.Stringer) bool { return wrong.Add(1) > 0 }}, 0)
		if err != nil {
			t.Fatal(err)
		}
		calls = append(calls, c)
	}
	rnd := rand.New(rand.NewPCG(3, 4))
	end := time.Now().Add(patience)
	for i := 0; i < 20000 || (runs.Load() < 100 || wrong.Load() == 0) && time.Now().Before(end); i++ {
		scribble(m, rnd, addr)
	}
	if runs.Load() < 100 || wrong.Load() == 0 {
		t.Errorf("%d runs, %d of them with an action that is none", runs.Load(), wrong.Load())
	}
	for _, c := range calls {
		m.End(c, 0)
		if n := m.Missed(c); n != (target.Missed{}) {
			t.Errorf("a call that is forgotten has missed %+v", n)
		}
	}
	n := runs.Load()
	for slot := range arch.MailSlots {
		atomic.StoreUint32(m.State(slot), arch.MailSlotPosted)
	}
	m.Shut()
	if runs.Load() != n {
		t.Error("a handler runs after its end")
	}
	for slot := range arch.MailSlots {
		if s := atomic.LoadUint32(m.State(slot)); s != arch.MailSlotRefused {
			t.Fatalf("slot %d is left in state %d", slot, s)
		}
	}
	if _, err := m.Add(&target.Handler{Run: handler}, 0); !errors.Is(err, unix.ESHUTDOWN) {
		t.Errorf("a handler for a closed mailbox: %v", err)
	}
	if err := m.close(); err != nil {
		t.Fatal(err)
	}
}

// ownMail makes a mailbox in memory of our own.
func ownMail(t *testing.T) *mailMem {
	t.Helper()
	fd, err := unix.MemfdCreate(mailboxName, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), mailboxName)
	if _, err := sealMail(f, arch.MailSize(leastDescs)); err != nil {
		t.Fatal(err)
	}
	mem, err := mapMail(f, arch.MailSize(leastDescs))
	if err != nil {
		t.Fatal(err)
	}
	return mem
}

// scribble writes what a hostile process could into a mailbox that stands at an address.
func scribble(m *mailSide, rnd *rand.Rand, addr uint64) {
	slot := rnd.IntN(arch.MailSlots)
	b := m.Slot(slot)
	for i := 8; i < 128; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], rnd.Uint64()>>rnd.IntN(64))
	}
	binary.LittleEndian.PutUint64(b[8:], addr+uint64(m.DescAt(rnd.IntN(8)))+uint64(rnd.IntN(2)))
	atomic.StoreUint32(m.State(slot), uint32(rnd.IntN(8)))
	bell := m.Word32(arch.MailBellOff)
	atomic.AddUint32(bell, 1)
	m.wake(bell, 1)
	switch rnd.IntN(50) {
	case 0:
		atomic.StoreUint32(m.Word32(arch.MailOffOff), rnd.Uint32())
	case 1:
		atomic.StoreUint32(m.Word32(arch.MailIdleOff), rnd.Uint32())
	}
}

// The tracer of handlers is killed before each of its steps while threads hit: the program
// goes on and computes right, and what was left is taken out.
func TestHandlerTracerDiesAtEveryStep(t *testing.T) {
	r := handledProgram(t)
	p := r.open()
	total, killed := math.MaxInt, 0
	stride := 53
	if os.Getenv("KPROBES_E2E_LONG") != "" {
		stride = 1
	}
	for i := -2 * stride; i <= total; i += stride { // up to 0 it is not killed: one that has to try again takes more steps
		r.Ask("run 3")
		cmd := reexec("TestHandlerTracer", tracerPID+"="+strconv.Itoa(r.PID), faultStep+"="+strconv.Itoa(max(i, 0)))
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		switch {
		case errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == unix.SIGKILL:
			killed++
		case err != nil:
			t.Fatalf("step %d of %d: %v\n%s", i, total, err, out)
		case i <= 0:
			_, text, _ := strings.Cut(string(out), "steps ")
			text, _, _ = strings.Cut(text, "\n")
			n, err := strconv.Atoi(text)
			if err != nil || n < 100 {
				t.Fatalf("steps: %v\n%s", err, out)
			}
			total = min(total, n)
		}
		untouched(t, p)
		retry(t, func() error {
			l, err := FindLeftover(p)
			if err == nil && l != nil {
				_, err = l.Undo()
			}
			return err
		})
		for _, m := range mapsOf(t, p) {
			if ours(m) {
				t.Errorf("step %d: left: %+v", i, m)
			}
		}
		if a := r.Ask("stop"); !strings.HasPrefix(a, "ok ") || !strings.HasSuffix(a, " 0") {
			t.Errorf("step %d of %d: %s", i, total, a)
		}
		if a := r.Ask("go 3 100"); a != "ok 300 0" {
			t.Errorf("step %d of %d: %s", i, total, a)
		}
	}
	if killed < total/stride/2 {
		t.Errorf("killed at %d of %d steps", killed, total)
	}
	t.Logf("killed %d times, %d steps", killed, total)
}

// dieAt is a tracer with a handler that changes nothing, which is killed before a step; 0:
// it says how many there are.
func dieAt(t *testing.T, pid, step int) {
	t.Helper()
	n := 0
	ptrace.OnStep = func(string) {
		if n++; n == step {
			unix.Kill(os.Getpid(), unix.SIGKILL)
		}
	}
	h := handle(t, &running{&testprog.Talker{PID: pid}, t}, 20*time.Millisecond)
	var runs atomic.Uint64
	c := h.handle("add", func(*amd64.Regs) arch.Action {
		runs.Add(1)
		return arch.ActionGo
	})
	eventually(t, "hits", func() bool { return runs.Load() > 10 })
	h.disarm()
	h.tg.EndCall(c)
	retry(t, h.tg.Close)
	os.Stdout.WriteString("steps " + strconv.Itoa(n) + "\n")
}
