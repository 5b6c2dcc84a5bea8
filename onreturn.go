package kprobes

import (
	"fmt"
	"reflect"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/goabi"
	"kprobes.dev/kprobes/internal/symbol"
)

// OnReturn has a handler called at each return of a function of the own process, with the call's arguments and results, or with the
// results alone:
//
//	r, err := kprobes.OnReturn(price, func(item string, count int, cents int) { … })
//	r, err := kprobes.OnReturn((*Server).Handle, func(err error) { … })
//	…
//	kprobes.UnregisterKretprobe(r)
//
// fn is as for OnCall. The types are compared with those of fn; a name needs debug information in the program.
//
// Arguments are those at the entry, whatever the function has done to its own. Since nobody keeps what an argument leads to until the
// return, they are copies: of a string its first 256 bytes, which must not be kept (strings.Clone); of numbers, and of arrays and
// structs of numbers, the value; of a pointer, map, channel or func only its address, which the handler takes as an uintptr. Other
// arguments (slices, interfaces, structs with pointers) are refused: leave the arguments out, or look at them with OnCall. Results are
// the function's own; the handler must not keep pointers to what they lead to.
//
// The handler is that of a Kretprobe, and runs where that does: it is atomic (see Handlers above). It is not called for calls that do
// not return (a panic, Goexit), nor where the function ends in a jump to another one, as wrappers of methods do.
//
// Errors, beside those of RegisterKretprobe: EINVAL (fn or handler is no func, the types differ, an argument of a type that is not
// taken), E2BIG (the values take more than MaxDataSize), EOPNOTSUPP (a function that has no parameters as Go has them; a name without
// debug information).
func OnReturn(fn, handler any) (*Kretprobe, error) {
	c, err := Self()
	if err != nil {
		return nil, err
	}
	r, fits, err := c.onReturn(fn, handler)
	if err != nil {
		return nil, fmt.Errorf("OnReturn: %w", err)
	}
	fitted := func(r *Kretprobe) (*registration, error) { return fittingKretprobe(r, fits) }
	if err := registerAll(c, []*Kretprobe{r}, fitted, nil); err != nil {
		return nil, err
	}
	return r, nil
}

// onReturn makes the return probe of a typed handler.
func (c *Core) onReturn(fn, handler any) (*Kretprobe, fitting, error) {
	kp, ft, err := placeOf(fn)
	if err != nil {
		return nil, nil, err
	}
	ht, err := handlerType(handler)
	if err != nil {
		return nil, nil, err
	}
	match := func(fn *symbol.Func, im *symbol.Image) error {
		_, _, err := goabi.Match(fn, im, ft)
		return err
	}
	if ft == nil {
		if ft, err = c.namedType(kp.SymbolName, ht); err != nil {
			return nil, nil, err
		}
		args := ht.NumIn() > ft.NumOut()
		match = func(fn *symbol.Func, im *symbol.Image) error { return goabi.MatchReturn(fn, im, ft, args) }
	}
	withArgs, err := checkReturn(ht, ft)
	if err != nil {
		return nil, nil, err
	}
	t, err := newTypedReturn(c, handler, ft, withArgs)
	if err != nil {
		return nil, nil, err
	}
	r := &Kretprobe{Kp: kp, Handler: t.returned, DataSize: t.size}
	if withArgs && ft.NumIn() > 0 {
		r.EntryHandler = t.entered
	}
	return r, func(fn *symbol.Func, im *symbol.Image) (_, _ int, err error) {
		if err = match(fn, im); err != nil {
			err = fmt.Errorf("OnReturn: %w", err)
		}
		return 0, 0, err
	}, nil
}

// namedType is the type of a function that is known by its name, as a handler shows it that takes its arguments and results; of one that
// takes the results alone, that with no arguments.
func (c *Core) namedType(name string, ht reflect.Type) (reflect.Type, error) {
	in, out, err := c.e.GoParams(name)
	if err != nil {
		return nil, err
	}
	args := ht.NumIn() - out
	if args != in && args != 0 {
		return nil, errno.Errorf(unix.EINVAL, "the handler is a %v, %s has %d parameters and %d results: give a func that takes these, or the results",
			ht, name, in, out)
	}
	var ts []reflect.Type
	for i := range ht.NumIn() {
		ts = append(ts, ht.In(i))
	}
	ft := reflect.FuncOf(ts[:args], ts[args:], false)
	call, err := goabi.CallOf(ft)
	if err != nil {
		return nil, err
	}
	for _, v := range call.Out {
		if args != in && v.Scalars == nil && v.Size > 0 {
			return nil, errno.Errorf(unix.EOPNOTSUPP, "a result of %s is on the stack, behind its arguments: give a func that takes the arguments too", name)
		}
	}
	return ft, nil
}

// checkReturn says whether a handler takes the arguments too, and what is wrong with its parameters.
func checkReturn(ht, ft reflect.Type) (withArgs bool, err error) {
	in, out := ft.NumIn(), ft.NumOut()
	args := ht.NumIn() - out
	bad := func() (bool, error) {
		return false, errno.Errorf(unix.EINVAL, "the handler is a %v: give a func that takes what the function takes and returns, a %v, or what it "+
			"returns", ht, ft)
	}
	if args != in && args != 0 {
		return bad()
	}
	for i := range out {
		if ht.In(args+i) != ft.Out(i) {
			return bad()
		}
	}
	for i := range args {
		h, f := ht.In(i), ft.In(i)
		switch {
		case h == f && (h.Kind() == reflect.String || !goabi.HoldsPointers(h)):
		case h == reflect.TypeFor[uintptr]() && goabi.IsAddress(f.Kind()):
		case h == f && goabi.IsAddress(f.Kind()):
			return false, mayBeGone(i, f, "take it as an uintptr, or leave the arguments out")
		case h == f:
			return false, mayBeGone(i, f, "leave the arguments out, or use OnCall")
		default:
			return bad()
		}
	}
	return args > 0, nil
}

// mayBeGone refuses an argument.
func mayBeGone(i int, t reflect.Type, instead string) error {
	return errno.Errorf(unix.EINVAL, "argument %d is a %v: what it leads to may be gone when the function returns: %s", i+1, t, instead)
}
