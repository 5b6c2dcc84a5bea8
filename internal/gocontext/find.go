package gocontext

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/debuginfo"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/symbol"
)

// Limit is how many contexts are gone through at most from one to the span that it carries.
const Limit = 64

// maxTypes bounds the types of contexts, and those of spans, that the code at a hit compares with.
const maxTypes = 128

// What Go and OpenTelemetry call them.
const (
	otel        = "go.opentelemetry.io/otel/trace."
	carriedName = otel + "SpanContext"
	keyTypeName = otel + "traceContextKeyType"
	keyName     = otel + "currentSpanKey"
	contextName = "context.Context"
	valueName   = "context.valueCtx"
)

// roots are the types of contexts that have no parent.
var roots = []string{"context.backgroundCtx", "context.todoCtx", "context.emptyCtx"}

// found is what was found in an image, by its link-time addresses.
type found struct {
	chain *fetch.Chain
	why   error // there is none
}

// Find gives the code that finds the span which a context of a program carries (fetch.Arg.Chain), by the addresses at which the program's file is mapped.
// An error says why there is none: the program does not have OpenTelemetry's spans, or its file does not tell of them.
func Find(m *symbol.Module, f *debuginfo.File) (any, error) {
	of, err := symbol.Derive(m.Image, func() (*found, error) {
		r := reader{im: m.Image, f: f}
		chain, err := r.read()
		return &found{chain, err}, nil
	})
	if err == nil {
		err = of.why
	}
	if err != nil {
		return nil, err
	}
	c := *of.chain
	c.KeyType = m.Runtime(c.KeyType)
	c.Links, c.Spans = slices.Clone(c.Links), slices.Clone(c.Spans)
	for i := range c.Links {
		c.Links[i].Table = m.Runtime(c.Links[i].Table)
	}
	for i := range c.Spans {
		c.Spans[i].Type = m.Runtime(c.Spans[i].Type)
	}
	return native.ChainCode(&c), nil
}

// reader reads a file.
type reader struct {
	im    *symbol.Image
	f     *debuginfo.File
	base  uint64                      // of descriptors
	types map[string]debuginfo.GoType // by their names
}

// errNoSpans is why most programs have no chain.
var errNoSpans = errors.New("the program has no spans of OpenTelemetry for Go (go.opentelemetry.io/otel/trace), or its symbol table is stripped: give the header of W3C's Trace Context, a string, as traceparent")

// tables are those of the interface context.Context: by the name of the type that each is for, its address. Go before 1.20 wrote a dot
// where there is a colon.
func (r *reader) tables() map[string]uint64 {
	out := map[string]uint64{}
	const suffix = "," + contextName
	for _, prefix := range []string{"go:itab.", "go.itab."} {
		for _, s := range r.im.DataBetween(prefix, suffix) {
			out[strings.TrimSuffix(strings.TrimPrefix(s.Name, prefix), suffix)] = s.Addr
		}
	}
	return out
}

// read makes the chain.
func (r *reader) read() (*fetch.Chain, error) {
	tables := r.tables()
	base, err := r.im.Data("runtime.types")
	if err != nil || tables["*"+valueName] == 0 {
		return nil, errNoSpans
	}
	r.base = base.Addr
	spans, err := r.f.GoStructs(carrying...)
	if err != nil {
		return nil, err
	}
	names := []string{keyTypeName, carriedName, valueName}
	for name := range tables {
		names = append(names, strings.TrimPrefix(name, "*"))
	}
	for _, name := range slices.Concat(spans, noSpans) {
		names = append(names, name, "*"+name)
	}
	if r.types, err = r.f.GoTypes(names); err != nil {
		return nil, err
	}
	if _, ok := r.types[keyTypeName]; !ok {
		return nil, errNoSpans
	}
	c := &fetch.Chain{Limit: Limit}
	for _, part := range []func() error{
		func() error { return r.key(c) },
		func() error { return r.carried(c) },
		func() error { return r.links(c, tables) },
		func() error { return r.spans(c, spans) },
	} {
		if err := part(); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// key finds the key of spans.
func (r *reader) key(c *fetch.Chain) error {
	v, err := r.f.GoConst(keyName)
	if err != nil {
		return err
	}
	sh, err := r.shape(keyTypeName)
	if err != nil {
		return err
	}
	if v < 0 || v >= 1<<31 || (sh.Kind != debuginfo.Int && sh.Kind != debuginfo.Uint) || !slices.Contains([]int64{1, 2, 4, 8}, sh.Size) {
		return fmt.Errorf("constant %s is %d, of a type of %d bytes: it is no key that can be compared", keyName, v, sh.Size)
	}
	c.Key, c.KeySize = int32(v), int(sh.Size)
	c.KeyType, err = r.descriptor(keyTypeName)
	return err
}

// carried finds the parts of a trace.SpanContext.
func (r *reader) carried(c *fetch.Chain) error {
	for name, p := range map[string]struct {
		at   *int32
		size int64
	}{"traceID": {&c.Trace, 16}, "spanID": {&c.Span, 8}, "traceFlags": {&c.Flags, 1}, "remote": {&c.Remote, 1}} {
		f, err := r.field(carriedName, name)
		if err != nil {
			return err
		}
		if size, err := sizeOf(f.Type); err != nil || size != p.size {
			return fmt.Errorf("member %s of type %s has %d bytes, and not %d: %w", name, carriedName, size, p.size, errors.Join(err, errUnknown))
		}
		*p.at = int32(f.Off)
	}
	return nil
}

var errUnknown = errors.New("this version of OpenTelemetry is not known")

// links finds the types of contexts.
func (r *reader) links(c *fetch.Chain, tables map[string]uint64) error {
	for name, p := range map[string]*int32{"key": &c.KeyAt, "val": &c.ValueAt} {
		f, err := r.field(valueName, name)
		if err != nil {
			return err
		}
		*p = int32(f.Off)
	}
	for name, table := range tables {
		l := fetch.Link{Table: table}
		of := strings.TrimPrefix(name, "*")
		switch {
		case name == "*"+valueName:
			l.Kind = fetch.LinkValue
		case slices.Contains(roots, of):
			l.Kind = fetch.LinkRoot
		}
		if l.Kind != fetch.LinkRoot {
			at, ok := r.parent(of)
			if !ok && l.Kind == fetch.LinkValue {
				return fmt.Errorf("type %s has not one field of the type %s", valueName, contextName)
			} else if !ok {
				continue
			}
			l.Parent = at
		}
		c.Links = append(c.Links, l)
	}
	if len(c.Links) > maxTypes {
		return fmt.Errorf("the program has %d types of contexts, more than the %d that are told apart", len(c.Links), maxTypes)
	}
	rank := map[fetch.LinkKind]int{fetch.LinkParent: 1, fetch.LinkRoot: 2}
	slices.SortFunc(c.Links, func(a, b fetch.Link) int { // the code asks in this order: the commonest first
		return cmp.Or(cmp.Compare(rank[a.Kind], rank[b.Kind]), cmp.Compare(a.Table, b.Table))
	})
	return nil
}

// parent finds the field of a type of contexts that is its parent: the only one of the type context.Context.
func (r *reader) parent(name string) (at int32, ok bool) {
	t, known := r.types[name]
	if !known {
		return 0, false
	}
	var all []int64
	collect(&all, t.Type, 0, 0)
	if len(all) != 1 || all[0] > maxOffset {
		return 0, false
	}
	return int32(all[0]), true
}

// maxDepth bounds structs that embed structs, and maxOffset where a field may be.
const (
	maxDepth  = 8
	maxOffset = 1 << 20
)

// collect gathers where a struct has contexts, at an offset: in itself, and in structs that it embeds.
func collect(all *[]int64, t debuginfo.Type, off int64, depth int) {
	fs, err := t.Fields()
	if err != nil || depth > maxDepth {
		return
	}
	for i := range fs {
		sh, err := fs[i].Type.Shape()
		switch {
		case err != nil:
		case sh.Name == contextName:
			*all = append(*all, off+fs[i].Off)
		case fs[i].Embedded && sh.Kind == debuginfo.Struct:
			collect(all, fs[i].Type, off+fs[i].Off, depth+1)
		}
	}
}

// carrying are the names of the fields in which types of spans have their trace.SpanContext, in the packages of OpenTelemetry for Go.
var carrying = []string{"spanContext", "sc"}

// noSpans are types of spans that stand for none; later versions of the second have a trace.SpanContext.
var noSpans = []string{otel + "noopSpan", "go.opentelemetry.io/otel/trace/noop.Span"}

// spans finds the types of spans, of the structs that may be some, and what points to them.
func (r *reader) spans(c *fetch.Chain, structs []string) error {
	for _, of := range slices.Concat(structs, noSpans) {
		at, carries := r.spanIn(of)
		if !carries && !slices.Contains(noSpans, of) {
			continue
		}
		for _, name := range []string{of, "*" + of} {
			if _, ok := r.types[name]; !ok {
				continue
			}
			d, err := r.descriptor(name)
			if err != nil {
				return err
			}
			if s := (fetch.SpanType{Type: d, At: at}); !slices.Contains(c.Spans, s) {
				c.Spans = append(c.Spans, s)
			}
		}
	}
	if len(c.Spans) > maxTypes {
		return fmt.Errorf("the program has %d types of spans, more than the %d that are told apart", len(c.Spans), maxTypes)
	}
	slices.SortFunc(c.Spans, func(a, b fetch.SpanType) int { return cmp.Compare(a.Type, b.Type) })
	return nil
}

// spanIn is where a struct has the trace.SpanContext that it carries; false, and -1: nowhere.
func (r *reader) spanIn(name string) (at int32, ok bool) {
	for _, of := range carrying {
		f, err := r.field(name, of)
		if err != nil {
			continue
		}
		if sh, err := f.Type.Shape(); err == nil && sh.Name == carriedName {
			return int32(f.Off), true
		}
	}
	return -1, false
}

func (r *reader) shape(name string) (*debuginfo.Shape, error) {
	t, ok := r.types[name]
	if !ok {
		return nil, fmt.Errorf("debug information does not tell type %s: %w", name, errUnknown)
	}
	return t.Shape()
}

func sizeOf(t debuginfo.Type) (int64, error) {
	sh, err := t.Shape()
	if err != nil {
		return 0, err
	}
	if sh.Kind != debuginfo.Array || sh.Size > 0 {
		return sh.Size, nil
	}
	one, err := sizeOf(sh.Elem)
	return one * sh.Count, err
}

// field finds a field of a struct.
func (r *reader) field(name, field string) (debuginfo.Field, error) {
	if _, err := r.shape(name); err != nil {
		return debuginfo.Field{}, err
	}
	fs, err := r.types[name].Fields()
	if err != nil {
		return debuginfo.Field{}, err
	}
	i := slices.IndexFunc(fs, func(f debuginfo.Field) bool { return f.Name == field })
	if i < 0 || fs[i].Off > maxOffset {
		return debuginfo.Field{}, fmt.Errorf("type %s has no member %s: %w", name, field, errUnknown)
	}
	return fs[i], nil
}

// descriptor is the link-time address of the program's description of a type. That begins with the size of its values.
func (r *reader) descriptor(name string) (uint64, error) {
	sh, err := r.shape(name)
	if err != nil {
		return 0, err
	}
	at := r.base + r.types[name].Descriptor
	var b [8]byte
	if err := r.im.ReadAt(at, b[:]); err != nil {
		return 0, fmt.Errorf("description of type %s: %w", name, err)
	}
	if size := int64(binary.LittleEndian.Uint64(b[:])); size != sh.Size {
		return 0, fmt.Errorf("the description of type %s at 0x%x is of one with %d bytes, and not %d", name, at, size, sh.Size)
	}
	return at, nil
}
