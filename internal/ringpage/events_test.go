package ringpage

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/hit"
)

// testEnv is the least that an argument needs, and the names of a program with one function of 0x100 bytes at 0x1000.
type testEnv struct{}

func (testEnv) Reg(string) (fetch.Base, bool)  { return fetch.Base{Kind: fetch.BaseReg, Reg: 7}, true }
func (testEnv) Stack() fetch.Base              { return fetch.Base{Kind: fetch.BaseReg, Reg: 4} }
func (testEnv) Arg(int) (fetch.Base, error)    { return fetch.Base{Kind: fetch.BaseReg, Reg: 7}, nil }
func (testEnv) RetVal(int) (fetch.Base, error) { return fetch.Base{Kind: fetch.BaseReg}, nil }
func (testEnv) Addr(a uint64) uint64           { return a }
func (testEnv) File(off int64) uint64          { return uint64(off) }
func (testEnv) Comm(int) string                { return "server" }

type names struct{ testEnv }

func (names) Symbol(addr uint64) (fetch.Sym, bool) {
	return fetch.Sym{Name: "serve", Off: addr - 0x1000, Size: 0x100}, addr-0x1000 < 0x100
}

type env struct{ testEnv }

func (env) Symbol(string) (uint64, error) { return 0x1000, nil }

// testEvent is an event with its definition.
type testEvent struct {
	hit.Event
	def *event.Def
	id  int
}

func newEvent(t testing.TB, id int, text string) *testEvent {
	t.Helper()
	d, err := event.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	at := fetch.PointEntry
	if d.Kind == event.Return {
		at = fetch.PointReturn
	}
	p, err := fetch.Compile(d, env{}, at)
	if err != nil {
		t.Fatal(err)
	}
	return &testEvent{Event: hit.Event{Group: "g", Name: d.Name, Return: d.Kind == event.Return, Addr: 0x1010, Prog: p, ArgsOff: 16}, def: d, id: id}
}

// definitions have all forms of fields.
var definitions = []string{
	"p:a f",
	"p:b f n=%di:s32 m=%si:u8 x=%dx:x64 w=%ax:x16 c=%ax:char y=%ax:symbol",
	"p:c f s=+0(%di):string z=%ax:symstr k=$comm l=\\\"lit\" n=%di:s8",
	"p:d f v=+0(%di):s64[3] w=+0(%di):string[2] b=%di:b4@8/32 q=+0(%di):u16[5] y=+0(%di):symbol[2]",
	"r:e f r=$retval:s64 t=+0($retval):string b=$retval:b3@1/8",
	"p:g f big=+0(%di):u64[20] s=+0(%di):ustring",
	"p:h f a=+0(%di):string b=+0(%di):string c=+0(%di):string",
}

func newEvents(t testing.TB) (all []*testEvent) {
	for i, d := range definitions {
		all = append(all, newEvent(t, 100+i, d))
	}
	return all
}

// randomRecord makes a record of the event, as generated code writes it.
func (e *testEvent) randomRecord(r *rand.Rand) []byte {
	rec := make([]byte, 16+e.Prog.Fixed)
	slot := func(at int) {
		switch n := r.IntN(60); {
		case n == 0: // a fault
			return
		case n == 1:
			n = 1 + r.IntN(4095)
			fallthrough
		default:
			binary.LittleEndian.PutUint64(rec[at:], uint64(len(rec))<<32|uint64(n+1))
			for range n {
				rec = append(rec, byte('a'+r.IntN(26)))
			}
			rec = append(rec, 0)
		}
	}
	for i := range e.Prog.Args {
		a := &e.Prog.Args[i]
		at := 16 + a.Off
		switch a.Store {
		case fetch.StoreString:
			slot(at)
		case fetch.StorePtrs:
			for k := range a.Count {
				slot(at + 8*k)
			}
		case fetch.StoreArray:
			for k := range a.Size * a.Count {
				rec[at+k] = byte(r.Uint32())
			}
		case fetch.StoreValue:
			binary.LittleEndian.PutUint64(rec[at:], r.Uint64()>>(8*(8-a.Type.Size)))
			if r.IntN(2) == 0 {
				binary.LittleEndian.PutUint64(rec[at:], 0x1000+uint64(r.IntN(256))>>(8*(8-a.Type.Size)))
			}
		}
	}
	return rec
}

// formatField is a field of a format file.
var formatField = regexp.MustCompile(`field:(.*?)(\w+)(\[\])?;\toffset:(\d+);\tsize:(\d+);\tsigned:([01]);`)

// decode shows a record by the event's format file: the reader that the tests hold the packer to.
func (e *testEvent) decode(data []byte) (fields map[string]string) {
	fields = map[string]string{}
	for _, m := range formatField.FindAllStringSubmatch(hit.Format(e.def, e.Prog, e.id), -1) {
		off, _ := strconv.Atoi(m[4])
		size, _ := strconv.Atoi(m[5])
		b := data[off : off+size]
		one, kind := size, strings.TrimSpace(m[1])
		if strings.HasPrefix(kind, "__data_loc") {
			one = 4
		} else if m[3] != "" {
			one, _ = strconv.Atoi(strings.Trim(kind, "us"))
			one /= 8
		}
		var all []string
		for ; len(b) > 0; b = b[one:] {
			var n uint64
			for k := range one {
				n |= uint64(b[k]) << (8 * k)
			}
			switch {
			case strings.HasPrefix(kind, "__data_loc") && n>>16 == 0:
				all = append(all, "(fault)")
			case strings.HasPrefix(kind, "__data_loc"):
				s := data[n&0xffff:][:n>>16]
				if s[len(s)-1] != 0 {
					all = append(all, "no NUL")
				}
				all = append(all, string(s[:len(s)-1]))
			case m[6] == "1":
				all = append(all, strconv.FormatInt(int64(n<<(64-8*one))>>(64-8*one), 10))
			default:
				all = append(all, strconv.FormatUint(n, 10))
			}
		}
		fields[m[2]] = strings.Join(all, ",")
	}
	return fields
}

// want gives what decode has to give of a hit.
func (e *testEvent) want(t *testing.T, h *hit.Hit) map[string]string {
	fields := map[string]string{"common_type": fmt.Sprint(e.id), "common_flags": "0", "common_preempt_count": "0", "common_pid": fmt.Sprint(h.TID), "__probe_ip": fmt.Sprint(e.Addr)}
	if e.Return {
		delete(fields, "__probe_ip")
		fields["__probe_func"], fields["__probe_ret_ip"] = fmt.Sprint(e.Addr), fmt.Sprint(h.Caller)
	}
	vs, err := e.Prog.Decode(h.Rec, e.ArgsOff, "server")
	if err != nil {
		t.Fatal(err)
	}
	if h.Unknown {
		fetch.HideResults(vs)
	}
	// A record has room for so much: what is longer is cut.
	room := MaxRecord - len(e.fixedPart())
	for i := range vs {
		v := &vs[i]
		elems := v.Elems
		if v.Arg.Count == 0 {
			elems = []fetch.Elem{{Num: v.Num, Str: v.Str, Fault: v.Fault}}
		}
		var all []string
		for _, el := range elems {
			t := v.Arg.Type
			s := strconv.FormatUint(el.Num, 10)
			isText := t.IsString() || v.Arg.Store == fetch.StoreNone
			switch {
			case t.Kind == event.SymStr:
				s, isText = string(fetch.AppendSym(nil, el.Num, names{}.Symbol)), true
			case isText && v.Unknown:
				s = "(unknown)"
			case isText:
				s = string(el.Str)
			case v.Unknown:
				s = "0"
			case t.Kind == event.Signed:
				s = strconv.FormatInt(t.Int(el.Num), 10)
			}
			if isText && (el.Fault || room <= 0) {
				s = "(fault)"
			} else if isText {
				s = s[:min(len(s), room-1)]
				room -= len(s) + 1
			}
			all = append(all, s)
		}
		fields[v.Arg.Name] = strings.Join(all, ",")
	}
	return fields
}

// fixedPart has as many bytes as the fields of the event.
func (e *testEvent) fixedPart() []byte {
	last := formatField.FindAllStringSubmatch(hit.Format(e.def, e.Prog, e.id), -1)
	m := last[len(last)-1]
	off, _ := strconv.Atoi(m[4])
	size, _ := strconv.Atoi(m[5])
	return make([]byte, off+size)
}
