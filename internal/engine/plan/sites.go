package plan

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/target"
)

// Room is where generated code goes.
type Room interface {
	// Take gives size bytes from which code reaches all addresses from lo to hi. They are the room's again with the next
	// Take, but for those that Keep has taken.
	Take(lo, hi uint64, size int) (uint64, error)
	// Keep takes the first n bytes of what Take gave last.
	Keep(n int)
	// Span is the range of addresses that the code around an address may refer to.
	Span(addr uint64) (lo, hi uint64)
}

// Sizes of code, in bytes.
const (
	FirstRoom = 2048 // more than most detours need
	roomStep  = 64   // what a detour takes is a multiple of
)

// Ops are what is to be done at the points of a function. At AtStub is what its trampoline leads to, where no instruction
// of the function stands.
type Ops map[uint64][]arch.ProbeOp

// AtStub is the place of a trampoline's work among the points of a function.
const AtStub = 0

// Add adds work at a point.
func (o Ops) Add(at uint64, ops ...arch.ProbeOp) { o[at] = append(o[at], ops...) }

// Sites generates the code of a plan: a site for each region, and one for the trampoline if ops have work there. stands,
// if not nil, says why no code may stand for a region. With an error it gives the sites that were made before.
func (p *Plan) Sites(a arch.Arch, ops Ops, room Room, env *arch.CodegenEnv, stands func(addr uint64) error) ([]*target.Site, error) {
	for at, err := range p.refused {
		return nil, &arch.PointError{Addr: at, Err: fmt.Errorf("%s+0x%x: %w", p.f.Name, at-p.f.Start, err)}
	}
	for _, ws := range ops {
		returnsLast(ws)
	}
	var out []*target.Site
	for _, r := range p.Regions {
		if err := p.stands(r, ops, stands); err != nil {
			return out, err
		}
		s, err := p.site(r, ops, room, env)
		if err != nil {
			return out, fmt.Errorf("%s+0x%x: %w", p.f.Name, placeOf(r, err)-p.f.Start, err)
		}
		out = append(out, s)
	}
	if ws := ops[AtStub]; len(ws) > 0 {
		s, err := stubSite(a, p.f.Start, ws, room, env)
		if err != nil {
			return out, fmt.Errorf("%s: %w", p.f.Name, err)
		}
		out = append(out, s)
	}
	return out, nil
}

// stands says why the target has no place for the code of a region.
func (p *Plan) stands(r arch.Region, ops Ops, stands func(addr uint64) error) error {
	if stands == nil {
		return nil
	}
	why := stands(r.Start())
	if why == nil {
		return nil
	}
	at := uint64(math.MaxUint64) // the first probe's, which another tactic may serve
	for point := range ops {
		if r.Holds(point) {
			at = min(at, point)
		}
	}
	return &arch.PointError{Addr: at, Err: fmt.Errorf("%s+0x%x: %w", p.f.Name, r.Start()-p.f.Start, why)}
}

// placeOf is the instruction of a region that an error is about: the first, if it does not say.
func placeOf(r arch.Region, err error) uint64 {
	var at *arch.PointError
	if errors.As(err, &at) {
		return at.Addr
	}
	return r.Start()
}

// site makes the site of a region.
func (p *Plan) site(r arch.Region, ops Ops, room Room, env *arch.CodegenEnv) (*target.Site, error) {
	d, size, err := p.detour(r, ops, room, env)
	if err != nil {
		return nil, err
	}
	s := &target.Site{
		Addr: r.Start(), Detour: d, Room: size, Trap: r.Tactic() != arch.TacticJump,
		Points: pointsAt(r, ops), Reason: p.reason(r),
	}
	if s.Patch, err = p.f.Code.Patch(r, d.Addr); err == nil {
		s.Orig, err = p.f.Text(s.Addr, len(s.Patch))
	}
	if err != nil {
		return nil, err
	}
	room.Keep(size)
	return s, nil
}

// detour generates the code of a region and finds the room for it. Most detours fit what is
// tried first; the size of one that does not is found out, and it is generated anew.
func (p *Plan) detour(r arch.Region, ops Ops, room Room, env *arch.CodegenEnv) (d *arch.Detour, size int, err error) {
	lo, hi := room.Span(r.Start())
	for size = FirstRoom; ; {
		addr, err := room.Take(lo, hi, size)
		if err != nil {
			return nil, 0, err
		}
		if d, err = p.f.Code.Detour(addr, r, ops, env); err != nil {
			return nil, 0, err
		}
		need := roundUp(len(d.Code))
		if need <= size {
			return d, need, nil
		}
		if size, err = p.f.Code.DetourSize(r, ops, env); err != nil {
			return nil, 0, err
		}
		size = max(size, need+roomStep)
	}
}

func roundUp(n int) int { return (n + roomStep - 1) &^ (roomStep - 1) }

// stubSite makes the site at which a function's trampoline leads to the work of its return probes: the
// first word of its table.
func stubSite(a arch.Arch, start uint64, ws []arch.ProbeOp, room Room, env *arch.CodegenEnv) (*target.Site, error) {
	tr := ws[0].Trampoline
	lo, hi := room.Span(start)
	for size := FirstRoom; ; {
		addr, err := room.Take(lo, hi, size)
		if err != nil {
			return nil, err
		}
		d, returns, err := a.ReturnDetour(addr, tr, ws, env)
		if err != nil {
			return nil, err
		}
		need := roundUp(len(d.Code))
		if need > size {
			size = need + roomStep
			continue
		}
		room.Keep(need)
		word := func(v uint64) []byte { return binary.LittleEndian.AppendUint64(nil, v) }
		return &target.Site{Addr: tr.Table, Orig: word(tr.Stubs), Patch: word(addr), Detour: d, Room: need, Region: returns}, nil
	}
}

// pointsAt tells what stands at the points of a region, in order of address.
func pointsAt(r arch.Region, ops Ops) []target.Point {
	var out []target.Point
	for at, ws := range ops {
		if !r.Holds(at) {
			continue
		}
		p := target.Point{Addr: at}
		for i := range ws {
			switch {
			case ws[i].Role == arch.RoleEntry:
				p.Returns++
			case ws[i].Call != nil && ws[i].Call.Internal:
			case i > 0 && ws[i].Event == ws[i-1].Event: // of the same probe
			case ws[i].Role == arch.RoleRecord || ws[i].Role == arch.RoleCall:
				p.Probes++
			}
		}
		if p.Probes+p.Returns > 0 {
			out = append(out, p)
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Addr < out[j].Addr })
	return out
}

// returnsLast puts the work of return probes at an exit behind all else that is done there, and
// that of the probe which was registered last first: so a kernel runs their handlers.
func returnsLast(ws []arch.ProbeOp) {
	isExit := func(w arch.ProbeOp) bool { return w.Role == arch.RoleExit }
	sort.SliceStable(ws, func(i, j int) bool { return !isExit(ws[i]) && isExit(ws[j]) })
	if i := slices.IndexFunc(ws, isExit); i >= 0 {
		slices.Reverse(ws[i:])
	}
}
