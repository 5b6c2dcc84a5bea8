package kernel

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"syscall"

	"github.com/cilium/ebpf/btf"

	"kprobes.dev/kprobes/internal/errno"
)

// Types are the types of the running kernel (BTF). It is safe for concurrent use.
type Types struct {
	spec *btf.Spec
	mu   sync.Mutex
	offs map[string]field // "struct.member" as asked for
}

// field is where a member lies.
type field struct {
	off, size int
	err       error
}

// maxBTF bounds the BTF that is read; Debian's has 5 MB, one with all modules built in 12.
const maxBTF = 64 << 20

// Types gives the types that the kernel carries for itself (.BTF, from pahole). They are
// read at the first call. The error is ENOENT if the kernel has none.
func (k *Kernel) Types() (*Types, error) {
	k.typesOnce.Do(func() { k.types, k.typesErr = k.loadTypes() })
	return k.types, k.typesErr
}

func (k *Kernel) loadTypes() (t *Types, err error) {
	defer func() {
		if e := recover(); e != nil {
			t, err = nil, errno.Errorf(syscall.EINVAL, "the types (BTF) of kernel %s are damaged: %v", k.Release(), e)
		}
	}()
	b, err := k.rawTypes()
	if err != nil {
		return nil, err
	}
	spec, err := btf.LoadSpecFromReader(bytes.NewReader(b))
	if err != nil {
		return nil, errno.Errorf(syscall.EINVAL, "the types (BTF) of kernel %s can not be read: %w", k.Release(), err)
	}
	return &Types{spec: spec, offs: map[string]field{}}, nil
}

// Spec gives the types as the library knows them.
func (t *Types) Spec() *btf.Spec { return t.spec }

// Offset gives the offset and the size, in bytes, of a member of a struct or union. Members
// of members are named with dots ("thread.sp"); those of anonymous ones as if they were the
// outer one's. The error, ENOENT, says what is not there.
func (t *Types) Offset(typ, member string) (off, size int, err error) {
	key := typ + "." + member
	t.mu.Lock()
	defer t.mu.Unlock()
	f, ok := t.offs[key]
	if !ok {
		f.off, f.size, f.err = t.offset(typ, member)
		t.offs[key] = f
	}
	return f.off, f.size, f.err
}

func (t *Types) offset(typ, member string) (off, size int, err error) {
	defer func() {
		if e := recover(); e != nil {
			err = errno.Errorf(syscall.EINVAL, "the kernel's types are damaged: %v", e)
		}
	}()
	at, err := t.structType(typ)
	if err != nil {
		return 0, 0, err
	}
	for name := range strings.SplitSeq(member, ".") {
		m, bits, ok := findMember(at, name, 0)
		if !ok || bits%8 != 0 {
			return 0, 0, errno.Errorf(syscall.ENOENT, "the guest's kernel has no member %s in its struct %s", member, typ)
		}
		off += int(bits / 8)
		at = btf.UnderlyingType(m)
	}
	if size, err = btf.Sizeof(at); err != nil {
		return 0, 0, errno.Errorf(syscall.EINVAL, "size of %s.%s: %w", typ, member, err)
	}
	return off, size, nil
}

// structType gives a struct or, if there is none, a union, of a name.
func (t *Types) structType(name string) (btf.Type, error) {
	all, err := t.spec.AnyTypesByName(name)
	if err == nil {
		for _, typ := range all {
			if s, ok := typ.(*btf.Struct); ok {
				return s, nil
			}
		}
		for _, typ := range all {
			if u, ok := btf.UnderlyingType(typ).(*btf.Union); ok {
				return u, nil
			}
			if s, ok := btf.UnderlyingType(typ).(*btf.Struct); ok {
				return s, nil
			}
		}
	}
	return nil, errno.Errorf(syscall.ENOENT, "the guest's kernel has no struct %s", name)
}

// maxNesting bounds anonymous members in anonymous members.
const maxNesting = 16

// findMember finds a member by name, in anonymous members too.
func findMember(typ btf.Type, name string, depth int) (btf.Type, uint32, bool) {
	var members []btf.Member
	switch s := typ.(type) {
	case *btf.Struct:
		members = s.Members
	case *btf.Union:
		members = s.Members
	}
	if depth > maxNesting {
		return nil, 0, false
	}
	for _, m := range members {
		if m.Name == name {
			return m.Type, uint32(m.Offset), true
		}
	}
	for _, m := range members {
		if m.Name != "" {
			continue
		}
		if t, off, ok := findMember(btf.UnderlyingType(m.Type), name, depth+1); ok {
			return t, uint32(m.Offset) + off, true
		}
	}
	return nil, 0, false
}

// Size gives the bytes of a struct or union.
func (t *Types) Size(typ string) (n int, err error) {
	defer func() {
		if e := recover(); e != nil {
			err = errno.Errorf(syscall.EINVAL, "the kernel's types are damaged: %v", e)
		}
	}()
	s, err := t.structType(typ)
	if err != nil {
		return 0, err
	}
	return btf.Sizeof(s)
}

// varSize gives the bytes of a per-CPU variable; 0 if the types do not tell.
func (t *Types) varSize(name string) (n int) {
	defer func() {
		if recover() != nil { // damaged
			n = 0
		}
	}()
	all, err := t.spec.AnyTypesByName(name)
	if err != nil {
		return 0
	}
	for _, typ := range all {
		if v, ok := typ.(*btf.Var); ok {
			if n, err := btf.Sizeof(v.Type); err == nil {
				return n
			}
		}
	}
	return 0
}

// Enum gives the value of a name in an enum.
func (t *Types) Enum(typ, name string) (v uint64, err error) {
	defer func() {
		if e := recover(); e != nil {
			err = errno.Errorf(syscall.EINVAL, "the kernel's types are damaged: %v", e)
		}
	}()
	all, err := t.spec.AnyTypesByName(typ)
	if err == nil {
		for _, at := range all {
			e, ok := at.(*btf.Enum)
			if !ok {
				continue
			}
			for _, val := range e.Values {
				if val.Name == name {
					return val.Value, nil
				}
			}
		}
	}
	return 0, errno.Errorf(syscall.ENOENT, "the guest's kernel has no %s in its enum %s", name, typ)
}

// Offset is Types.Offset of the running kernel.
func (k *Kernel) Offset(typ, member string) (off, size int, err error) {
	t, err := k.Types()
	if err != nil {
		return 0, 0, err
	}
	return t.Offset(typ, member)
}

// Size is Types.Size of the running kernel.
func (k *Kernel) Size(typ string) (int, error) {
	t, err := k.Types()
	if err != nil {
		return 0, err
	}
	return t.Size(typ)
}

// Enum is Types.Enum of the running kernel.
func (k *Kernel) Enum(typ, name string) (uint64, error) {
	t, err := k.Types()
	if err != nil {
		return 0, err
	}
	return t.Enum(typ, name)
}

// offsets collects offsets of one struct: the first error sticks.
type offsets struct {
	t   *Types
	typ string
	err error
}

// of gives the offset of the first of several spellings of a member that the kernel has.
func (o *offsets) of(members ...string) uint64 {
	var first error
	for _, m := range members {
		off, _, err := o.t.Offset(o.typ, m)
		if err == nil {
			return uint64(off)
		}
		if first == nil {
			first = err
		}
	}
	if o.err == nil {
		o.err = fmt.Errorf("%w", first)
	}
	return 0
}
