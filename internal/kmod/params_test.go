package kmod

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// set links the module of all with values of its parameters.
func set(t *testing.T, o *Object, args ...string) (im *Image, unknown []string, err error) {
	t.Helper()
	var all []Param
	for _, a := range args {
		all = append(all, ParseParam(a))
	}
	l := o.Layout(all)
	im, err = l.Link(places, outside(o, 0x40500000))
	if err != nil {
		t.Fatal(err)
	}
	err = im.Set(l, all, func(name string) { unknown = append(unknown, name) })
	return im, unknown, err
}

// value gives a variable of the module.
func value(t *testing.T, im *Image, name string, size uint64) []byte {
	t.Helper()
	for i := range im.o.symbols {
		if im.o.symbols[i].name == name {
			if b := im.mem(im.addr[i], size); b != nil {
				return b
			}
		}
	}
	t.Fatalf("no variable %s", name)
	return nil
}

// Parameters have the values that they are given, of which the last one counts.
func TestParams(t *testing.T) {
	for _, cc := range compilers {
		o := parsed(t, compile(t, cc, "all", own(t, "all")))
		im, unknown, err := set(t, o, "symbol=other function", "limit=1", "limit=-0x10", "name=first", "name=a long name", "noisy", "counts=1,020,0x3", "no-such=5")
		if err != nil || !slices.Equal(unknown, []string{"no_such"}) {
			t.Fatalf("%v, unknown %q", err, unknown)
		}
		if s, _, _ := strings.Cut(string(value(t, im, "symbol", 512)), "\x00"); s != "other function" {
			t.Errorf("symbol is %q", s)
		}
		if n := int32(binary.LittleEndian.Uint32(value(t, im, "limit", 4))); n != -16 {
			t.Errorf("limit is %d", n)
		}
		if s, _ := im.text(binary.LittleEndian.Uint64(value(t, im, "name", 8))); s != "a long name" {
			t.Errorf("name is %q", s)
		}
		if b := value(t, im, "loud", 1); b[0] != 1 {
			t.Errorf("noisy is %d", b[0])
		}
		b := value(t, im, "counts", 16)
		if got := []uint32{binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint32(b[12:])}; !slices.Equal(got, []uint32{1, 16, 3, 0}) {
			t.Errorf("counts are %d", got)
		}
		if n := binary.LittleEndian.Uint32(value(t, im, "counted", 4)); n != 3 {
			t.Errorf("%d counted", n)
		}
	}
}

// A description of a parameter that can not be is refused.
func TestParamsHostile(t *testing.T) {
	for _, field := range []string{".size = 1UL << 63, .most = 2", ".size = 1UL << 40", ".size = 8, .most = 1UL << 61", ".size = 4, .count = (unsigned int *)8", ".size = 4, .value = (void *)64"} {
		text := "#include <linux/module.h>\nint v;\nstatic const struct __kp_param p __attribute__((used, section(\"__param\"), aligned(8))) = {.name = \"p\", .type = \"int\", .value = &v, " + field + "};\n"
		o := parsed(t, compile(t, "gcc", "hostile", text, "-Wno-override-init"))
		if _, _, err := set(t, o, "p=1"); !errors.Is(err, ErrObject) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// Values that do not fit are refused with the kernel's error numbers and words.
func TestParamsRefused(t *testing.T) {
	o := parsed(t, compile(t, "gcc", "all", own(t, "all")))
	for arg, want := range map[string]error{
		"limit=x": unix.EINVAL, "limit": unix.EINVAL, "limit=2147483648": unix.ERANGE, "limit=-2147483649": unix.ERANGE, "limit=1_0": unix.EINVAL,
		"limit=99999999999999999999": unix.ERANGE, "limit=--1": unix.EINVAL, "counts=-1": unix.EINVAL, "counts=1,2,3,4,5": unix.EINVAL, "counts=4294967296": unix.ERANGE,
		"noisy=maybe": unix.EINVAL, "noisy=": unix.EINVAL, "name": unix.EINVAL, "symbol": unix.EINVAL,
		"symbol=" + strings.Repeat("x", 512): unix.ENOSPC, "name=" + strings.Repeat("x", 1025): unix.ENOSPC,
	} {
		_, _, err := set(t, o, arg)
		name, v, _ := strings.Cut(arg, "=")
		if !errors.Is(err, want) || !strings.Contains(err.Error(), "`"+v+"' invalid for parameter `"+name+"'") {
			t.Errorf("%.40s: %v, want %v", arg, err, want)
		}
	}
	for v, want := range map[string]byte{"1": 1, "y": 1, "on": 1, "0": 0, "N": 0, "off": 0} {
		im, _, err := set(t, o, "noisy=1", "noisy="+v)
		if err != nil || value(t, im, "loud", 1)[0] != want {
			t.Errorf("noisy=%s: %v", v, err)
		}
	}
}
