package event

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

// TestPath takes names with steps apart.
func TestPath(t *testing.T) {
	for _, c := range []struct {
		arg, name string
		steps     []Step // their columns count from the start of the argument
	}{
		{"a", "a", nil},
		{"a->b", "a", []Step{{Field: "b", Arrow: true, Pos: 3}}},
		{"a.b->c", "a", []Step{{Field: "b", Pos: 2}, {Field: "c", Arrow: true, Pos: 5}}},
		{"a->", "a", []Step{{Arrow: true, Pos: 3, Index: -1}}},
		{"a.(*m/p.T).b", "a", []Step{{Type: "*m/p.T", Pos: 3}, {Field: "b", Pos: 11}}},
		{"a.b.(p.F[func(int),p.G[p.H]])[1]", "a", []Step{{Field: "b", Pos: 2}, {Type: "p.F[func(int),p.G[p.H]]", Pos: 5}, {Index: 1, Pos: 30}}},
		{`a.("struct { F func() }").F`, "a", []Step{{Type: "struct { F func() }", Pos: 3}, {Field: "F", Pos: 26}}},
		{"~r0.(p.T).(p.U)", "~r0", []Step{{Type: "p.T", Pos: 5}, {Type: "p.U", Pos: 11}}},
		{"a[3].b[0x10]", "a", []Step{{Index: 3, Pos: 2}, {Field: "b", Pos: 5}, {Index: 16, Pos: 7}}},
	} {
		d, err := Parse("p f " + c.arg)
		if err != nil {
			t.Errorf("%s: %v", c.arg, err)
			continue
		}
		for i := range c.steps {
			c.steps[i].Pos += len("p f ")
		}
		name, steps := d.Args[0].Expr.Path()
		if name != c.name || !reflect.DeepEqual(steps, c.steps) {
			t.Errorf("%s: %q, %+v; want %+v", c.arg, name, steps, c.steps)
		}
	}
	if _, err := Parse("p f e.(*" + strings.Repeat("long.example/", 8) + "errs.NotFound).Key:string g=h.(p." + strings.Repeat("T", 200) + ").i"); err != nil {
		t.Error(err)
	}
	var tooLong *Error
	if _, err := Parse("p f e.(p.T)." + strings.Repeat("m", MaxArgText-4)); !errors.As(err, &tooLong) || tooLong.Code != ArgTooLong {
		t.Errorf("%v", err)
	}
	for arg, want := range map[string]int{"a[": 1, "a[]": 1, "a[x]": 1, "a[-1]": 1, "a[1": 1, "a[99999999999]": 1, "a.(": 3, "a.()": 3, "a.((T)": 3, "a~": 0} {
		_, err := Parse("p f " + arg)
		var e *Error
		if !errors.As(err, &e) || e.Code != BadFetchArg || e.Pos != want+len("p f ") {
			t.Errorf("%s: %v", arg, err)
		}
	}
}
