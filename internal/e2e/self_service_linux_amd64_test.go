package e2e

import (
	"bytes"
	"debug/elf"
	"fmt"
	"slices"
	"testing"
	"time"

	"kprobes.dev/kprobes/internal/kuprobe"
	"kprobes.dev/kprobes/internal/testprog"
)

// serviceLoad is what goservice answers to "load".
type serviceLoad struct {
	Bad       int64
	Why       string
	Hash      string
	PerSecond float64 `json:"per_second"`
	Calls     map[string]uint64
}

// serviceCount is what one of its probes has counted.
type serviceCount struct {
	Kind         string
	Hits, Missed uint64
}

// Size of a load: requests and clients.
const (
	serviceRequests = 400
	serviceClients  = 4
)

// sampled are functions of the list that a load calls as often each time.
var sampled = []string{
	"main.(*service).handle", "main.price", "main.cost", "main.nested", "main.sorted", "main.digest", "main.echo", "main.body",
	"encoding/json.Unmarshal", "encoding/json.checkValid", "encoding/json.(*decodeState).value", "encoding/json.(*decodeState).object",
	"encoding/json.(*decodeState).array", "encoding/json.(*decodeState).objectInterface", "encoding/json.(*decodeState).literalStore",
	"encoding/json.stateInStringEsc", "encoding/json.stateInStringEscU1", "encoding/json.stateN",
	"encoding/json.HTMLEscape", "encoding/json.MarshalIndent", "encoding/json.(*Encoder).Encode",
	"net/http.(*ServeMux).ServeHTTP", "net/http.HandlerFunc.ServeHTTP", "net/http.(*Transport).roundTrip", "net/http.DetectContentType",
	"net/textproto.readMIMEHeader", "net/url.parse", "crypto/sha256.Sum256",
}

// TestSelfService probes 1,000 functions of an HTTPS service at once, from inside. Its
// answers are those that it gives without probes, the counts are those of the kernel's own
// probes on a copy of the program, and it bears that all are disarmed and armed all the time.
func TestSelfService(t *testing.T) {
	path := testprog.BuildLive(t, "goservice")
	p := testprog.Start(t, path)
	first := serviceRound(t, p, "")
	plain := serviceRound(t, p, first.Hash)
	armed := probeService(t, p)
	probed := serviceRound(t, p, first.Hash)
	var counts map[string]serviceCount
	p.Ask("counts", &counts)
	t.Logf("%.0f requests a second, with 1,000 functions probed %.0f (%.0f %%); %+v", plain.PerSecond, probed.PerSecond, 100*probed.PerSecond/plain.PerSecond, armed)
	checkCounts(t, counts, probed, plain)
	code := unprobeService(t, p)
	serviceRound(t, p, first.Hash)
	compareWithKernel(t, path, first.Hash, counts)

	probeService(t, p)
	churnService(t, p, first.Hash)
	if n := unprobeService(t, p); n != code {
		t.Errorf("%d bytes of generated code are left, %d after all was probed once", n, code)
	}
	serviceRound(t, p, first.Hash)
	p.Quit(nil)
}

// serviceArmed is what goservice answers to "probe".
type serviceArmed struct {
	Error                         string
	Counters, Kprobes, Kretprobes int
	Tactics                       map[string]int
}

// probeService has the service probe its 1,000 functions.
func probeService(t *testing.T, p *testprog.Proc) (a serviceArmed) {
	t.Helper()
	p.Ask("probe", &a)
	if a.Error != "" || a.Counters+a.Kprobes+a.Kretprobes != 1000 || a.Kprobes < 20 || a.Kretprobes < 20 {
		t.Fatalf("armed: %+v", a)
	}
	return a
}

// unprobeService takes them out, and tells how many bytes of generated code are left.
func unprobeService(t *testing.T, p *testprog.Proc) uint64 {
	t.Helper()
	var left struct {
		Error string
		Code  uint64
	}
	p.Ask("unprobe", &left)
	if left.Error != "" {
		t.Error(left.Error)
	}
	return left.Code
}

// serviceRound runs a load, whose answers must have this hash.
func serviceRound(t *testing.T, p *testprog.Proc, hash string) *serviceLoad {
	t.Helper()
	l := &serviceLoad{}
	p.Ask(fmt.Sprintf("load %d %d", serviceRequests, serviceClients), l)
	if l.Bad != 0 || hash != "" && l.Hash != hash {
		t.Fatalf("%d bad answers (%s), hash %s, want %s; stderr: %.2000s", l.Bad, l.Why, l.Hash, hash, p.Stderr())
	}
	return l
}

// checkCounts compares with what the handlers themselves count, and sees that the functions
// that must be probed were hit.
func checkCounts(t *testing.T, counts map[string]serviceCount, now, before *serviceLoad) {
	t.Helper()
	for path, fn := range map[string]string{"/price": "main.price", "/sorted": "main.sorted", "/digest": "main.digest", "/echo": "main.echo"} {
		if c, want := counts[fn], now.Calls[path]-before.Calls[path]; c.Hits+c.Missed != want || want == 0 {
			t.Errorf("%s: %+v, the program counted %d", fn, c, want)
		}
	}
	for _, fn := range []string{
		"runtime.mallocgc", "runtime.newstack", "runtime.memmove", "runtime.schedule",
		"runtime.findfunc", "runtime.(*unwinder).next", "runtime.(*unwinder).resolveInternal", "runtime.adjustframe", // its callers
		"encoding/json.(*scanner).pushParseState", "encoding/json.stateBeginValue", "encoding/json.stateInString", "encoding/json.stateEndValue",
	} {
		if counts[fn].Hits == 0 {
			t.Errorf("%s: no hit", fn)
		}
	}
}

// compareWithKernel runs the same loads on a copy of the program, with the kernel's probes
// on the sample.
func compareWithKernel(t *testing.T, path, hash string, counts map[string]serviceCount) {
	t.Helper()
	if _, err := kuprobe.Mount(); err != nil {
		t.Fatalf("%v: run as root", err)
	}
	path = testprog.Copy(t, path)
	p := testprog.Start(t, path)
	serviceRound(t, p, hash)
	serviceRound(t, p, hash)
	kernel := map[string]*kuprobe.Probe{}
	for _, fn := range sampled {
		probe, err := behindCheck(t, path, fn).Open()
		if err != nil {
			t.Fatal(err)
		}
		kernel[fn] = probe
	}
	serviceRound(t, p, hash)
	for fn, probe := range kernel {
		n, err := probe.Count()
		if c := counts[fn]; err != nil || n != c.Hits+c.Missed || n == 0 {
			t.Errorf("%s: the kernel counts %d (%v), the probe %+v", fn, n, err, c)
		}
		if err := probe.Close(); err != nil {
			t.Error(err)
		}
	}
	p.Quit(nil)
}

// behindCheck finds the place in a Go function that every call runs once: behind the check
// of its stack, from which it may begin anew.
func behindCheck(t *testing.T, path, fn string) kuprobe.Place {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	syms, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(syms, func(s elf.Symbol) bool { return s.Name == fn })
	text := f.Section(".text")
	if i < 0 || text == nil {
		t.Fatalf("%s: no function %s", path, fn)
	}
	code := make([]byte, min(32, syms[i].Size))
	if _, err := text.ReadAt(code, int64(syms[i].Value-text.Addr)); err != nil {
		t.Fatal(err)
	}
	pl, err := kuprobe.Find(path, fn, uint64(checkLen(code)))
	if err != nil {
		t.Fatal(err)
	}
	return pl
}

// checkLen is the length of the check of the stack that a function's code begins with; 0:
// there is none.
func checkLen(code []byte) int {
	n := 0
	switch {
	case bytes.HasPrefix(code, []byte{0x49, 0x3b, 0x66, 0x10}): // cmp 0x10(%r14),%rsp
		n = 4
	case bytes.HasPrefix(code, []byte{0x4c, 0x8d, 0x64, 0x24}): // lea -N(%rsp),%r12; cmp 0x10(%r14),%r12
		n = 5 + 4
	case bytes.HasPrefix(code, []byte{0x4c, 0x8d, 0xa4, 0x24}):
		n = 8 + 4
	default:
		return 0
	}
	if code[n] == 0x76 { // jbe rel8
		return n + 2
	}
	return n + 6
}

// churnService has the service answer while all is disarmed and armed in a loop: for a few
// seconds, in a long run ten minutes.
func churnService(t *testing.T, p *testprog.Proc, hash string) {
	t.Helper()
	p.Ask("churn", nil)
	sum, rounds := 0.0, 0
	for end := time.Now().Add(lasting(2 * time.Second)); rounds == 0 || time.Now().Before(end); rounds++ {
		sum += serviceRound(t, p, hash).PerSecond
	}
	var done struct {
		Error string
		Turns int
	}
	p.Ask("settle", &done)
	if done.Error != "" || done.Turns == 0 {
		t.Errorf("disarming and arming: %+v", done)
	}
	t.Logf("%d loads under %d turns of disarming and arming: %.0f requests a second", rounds, done.Turns, sum/float64(rounds))
}
