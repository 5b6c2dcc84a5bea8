package fetch

import (
	"errors"
	"testing"

	"kprobes.dev/kprobes/event"
)

// kernelEnv is the environment of a kernel.
type kernelEnv struct{ testEnv }

func (kernelEnv) RefuseType(t event.TypeKind) string { return NoGoStrings(t) }

// TestUserLoads looks at which loads of an argument read the user's memory: those with u, and
// the strings of a ustring.
func TestUserLoads(t *testing.T) {
	for arg, want := range map[string]uint32{
		"$arg1": 0, "+0($arg1)": 0, "+u0($arg1)": 1, "+0(+u8($arg1))": 1, "+u0(+8($arg1))": 2, "+u4(+u8(+0($arg1)))": 6,
		"+0($arg1):string": 0, "+0($arg1):ustring": 1, "+u0($arg1):string": 1,
		"+0(+8($arg1)):ustring": 2, "+u8(+0(+u4($arg1))):u16[3]": 5,
		"+0($arg1):string[2]": 0, "+0($arg1):ustring[2]": 2, "+u0($arg1):string[2]": 1, "+u0(+0($arg1)):ustring[2]": 6,
	} {
		p := compile(t, "p f "+arg, PointEntry)
		if got := p.Args[0].User; got != want {
			t.Errorf("%s: loads %b, want %b", arg, got, want)
		}
	}
}

// TestRefuseType lets the environment refuse a type, at its column.
func TestRefuseType(t *testing.T) {
	def, err := event.Parse("p f a=+0($arg1):gostring")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Compile(def, testEnv{}, PointEntry); err != nil {
		t.Error(err)
	}
	_, err = Compile(def, kernelEnv{}, PointEntry)
	var e *event.Error
	if !errors.As(err, &e) || e.Code != event.BadType || e.Pos != def.Args[0].Type.Pos {
		t.Errorf("%v", err)
	}
}
