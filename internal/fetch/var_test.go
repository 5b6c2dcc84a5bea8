package fetch

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"kprobes.dev/kprobes/event"
)

// namedEnv is testEnv with debug information of a function f(count int, name *char, buf []char, flag, gone, s string): flag is in the
// upper half of a register, and s is a string of Go.
type namedEnv struct{ testEnv }

func (namedEnv) Params(Point, bool) ([]string, error) {
	return []string{"count", "name", "buf", "flag", "gone", "s"}, nil
}

func (namedEnv) Name(e *event.Expr, _ Point) (*Var, error) {
	switch e.Name {
	case "count":
		return &Var{Base: reg(1), Type: Type{Kind: event.Signed, Size: 4}, TypeName: "int"}, nil
	case "name":
		return &Var{Base: reg(2), Type: Type{Kind: event.Hex, Size: 8}, Str: StrPointer, TypeName: "char *"}, nil
	case "buf":
		return &Var{Base: reg(3), Derefs: []int64{16}, Type: Type{Kind: event.String}, Str: StrHere, TypeName: "char[8]"}, nil
	case "flag":
		return &Var{Base: reg(4), Type: Type{Kind: event.Unsigned, Size: 8, Width: 16, Shift: 32}, TypeName: "short"}, nil
	case "s":
		return &Var{Base: reg(1), Next: reg(4), Type: Type{Kind: event.GoString}, Str: StrGo, TypeName: "string"}, nil
	case "gone":
		return nil, &NameError{Code: event.NoBTFArg, Pos: e.Pos, Why: "gone: it was optimised out"}
	}
	return nil, errors.New("no such name")
}

// TestNames compiles what is named, with the type that the program has and with those that are asked for.
func TestNames(t *testing.T) {
	m := &machine{regs: map[Reg]uint64{1: 0x1122334455667788, 2: 0x500, 3: 0x600, 4: 0xfff5_8081_0000_0002}, mem: map[uint64]byte{}}
	m.put(0x500, []byte("tea\x00")...)
	m.put(0x610, []byte("pot\x00")...)
	m.put(0x1122334455667788, 'g', 'o')
	for in, want := range map[string]string{
		"count":             "count=1432778632",
		"n=count:x8":        "n=0x88",
		"name":              "name=0x500",
		"name:string":       `name="tea"`,
		"+1(name):u8":       "arg1=101",
		"x=+0(name):string": `x="tea"`,
		"+0(flag)":          "",
		"+0(buf)":           "",
		"count:u8[4]":       "",
		"count:b4@4/8":      "count=8",
		"buf":               `buf="pot"`,
		"buf:u8":            "buf=112",
		"flag":              "flag=32897",
		"flag:u8":           "flag=129",
		"flag:s64":          "flag=-32639",
		"name:gostring":     "",
		"count:string":      "",
		"nobody":            "",
		"gone":              "",
		"count buf:x16":     "count=1432778632 buf=0x6f70",
		"x=name:string ":    `x="tea"`,
	} {
		d, err := event.Parse("p f " + in)
		var p *Program
		if err == nil {
			p, err = Compile(d, namedEnv{}, PointEntry)
		}
		var bad *event.Error
		switch {
		case want == "" && !errors.As(err, &bad):
			t.Errorf("%s: %v", in, err)
		case want == "":
		case err != nil:
			t.Errorf("%s: %v", in, err)
		default:
			if got := textOf(t, p, m.record(p, 0)); got != want {
				t.Errorf("%s: %s; want %s", in, got, want)
			}
		}
	}
}

// textOf shows a record's arguments.
func textOf(t *testing.T, p *Program, rec []byte) string {
	t.Helper()
	vs, err := p.Decode(rec, 0, "")
	if err != nil {
		t.Fatal(err)
	}
	var out []byte
	for i := range vs {
		if i > 0 {
			out = append(out, ' ')
		}
		out = append(fmt.Appendf(out, "%s=", vs[i].Arg.Name), vs[i].AppendText(nil, nil)...)
	}
	return string(out)
}

// TestAllParameters takes all that can be recorded, and tells what can not.
func TestAllParameters(t *testing.T) {
	d, err := event.Parse("p f first=%r0 $arg* last=%r1")
	if err != nil {
		t.Fatal(err)
	}
	p, err := Compile(d, namedEnv{}, PointEntry)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for i := range p.Args {
		names = append(names, p.Args[i].Name)
	}
	if want := []string{"first", "count", "name", "buf", "flag", "s", "last"}; !slices.Equal(names, want) {
		t.Errorf("recorded are %q, want %q", names, want)
	}
	if len(p.LeftOut) != 1 || p.LeftOut[0].Name != "gone" {
		t.Errorf("left out: %v", p.LeftOut)
	}
	twice, err := event.Parse("p f $arg* name=%r1")
	if err != nil {
		t.Fatal(err)
	}
	var bad *event.Error
	if _, err := Compile(twice, namedEnv{}, PointEntry); !errors.As(err, &bad) || bad.Code != event.UsedArgName || bad.Pos != 10 {
		t.Errorf("one name twice: %v", err)
	}
	if _, err := Compile(d, namedEnv{}, PointInside); err == nil {
		t.Error("inside the function its parameters are known")
	}
}
