package amd64

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/arch"
)

// plan tells the regions for points of code at addr: start+length for each, + for a
// jump, ! for boost, s for step, and after a slash the points refused and why.
func plan(t *testing.T, addr uint64, after string, p arch.Policy, code string, points ...uint64) string {
	t.Helper()
	b := hexBytes(t, code)
	fl, err := Analyse(&Func{Name: "f", Addr: addr, Code: b})
	if err != nil {
		t.Fatal(err)
	}
	rs := &Regions{Flow: fl, After: padding(hexBytes(t, after)), Policy: p}
	for i := range points {
		points[i] += addr
	}
	regions, refused := rs.Plan(SortPoints(slices.Clone(points)))
	var out []string
	end := uint64(0)
	for _, r := range regions {
		mark := map[arch.Tactic]string{arch.TacticJump: "+", arch.TacticBoost: "!", arch.TacticStep: "s"}[r.Tactic()]
		out = append(out, fmt.Sprintf("%d%s%d", r.Addr-addr, mark, r.Len))
		checkRegion(t, fl, r, end)
		end = r.End()
	}
	for _, pt := range points {
		ref := refused[pt]
		covered := slices.ContainsFunc(regions, func(r *Region) bool { return r.Holds(pt) })
		if covered == (ref != nil) {
			t.Errorf("point %d: covered %v, refusal %v", pt-addr, covered, ref)
		}
		if ref != nil {
			out = append(out, fmt.Sprintf("/%d %s at %d", pt-addr, ref.Rule, ref.Addr-addr))
		}
	}
	return strings.Join(out, " ")
}

// checkRegion holds a region to what makes it safe, whatever the plan was.
func checkRegion(t *testing.T, fl *Flow, r *Region, end uint64) {
	t.Helper()
	if r.Addr < end {
		t.Errorf("region at %#x overlaps the one before it", r.Addr)
	}
	if r.Tactic() != arch.TacticJump {
		if len(r.Steps) != 1 {
			t.Errorf("breakpoint at %#x for %d instructions", r.Addr, len(r.Steps))
		}
		return
	}
	if r.Why() != nil || r.Len < JumpLen || r.Addr/pageSize != (r.Addr+JumpLen-1)/pageSize {
		t.Errorf("jump of %d bytes at %#x, why not: %v", r.Len, r.Addr, r.Why())
	}
	for a := r.Addr + 1; a < r.Addr+JumpLen; a++ {
		if fl.Target(a) {
			t.Errorf("%#x is a target inside the jump at %#x", a, r.Addr)
		}
	}
	for i, s := range r.Steps {
		if k := s.Inst.Kind; i < len(r.Steps)-1 && (k == KindCall || k == KindCallInd || endsFlow(s.Inst)) {
			t.Errorf("instruction at %#x stands in the middle of a region", s.Addr)
		}
	}
}

func TestRegions(t *testing.T) {
	const (
		text  = 0x401000
		ints  = "cccccccccccccccc"
		jump  = arch.TacticJump
		boost = arch.TacticBoost
		step  = arch.TacticStep
	)
	noTraps := errors.New("no traps")
	pts := func(p ...uint64) []uint64 { return p }
	for _, c := range []struct {
		name   string
		addr   uint64
		code   string
		after  string
		policy arch.Policy
		points []uint64
		want   string
	}{
		{"one_long_instruction", text, "48c7c001000000 c3", "", arch.Policy{}, pts(0), "0+7"},
		{"whole_instructions", text, "55 4889e5 b801000000 c3", "", arch.Policy{}, pts(0), "0+9"},
		{"ret_before_padding", text, "b801000000 c3", ints, arch.Policy{}, pts(5), "5+5"},
		{"ret_before_a_function", text, "b801000000 c3", "4889", arch.Policy{}, pts(5), "0+6"},
		{"ret_alone", text, "c3", "55", arch.Policy{Traps: noTraps}, pts(0), "/0 too short for a jump at 0"},
		{"ret_alone_boosted", text, "c3", "55", arch.Policy{}, pts(0), "0!1"},
		{"ret_alone_padded", text, "c3", ints, arch.Policy{}, pts(0), "0+5"},
		{"ret_short_of_padding", text, "c3", "cccccc", arch.Policy{Force: jump}, pts(0), "/0 too short for a jump at 0"},
		{"nop_padding", text, "c3 0f1f4000 90", "", arch.Policy{}, pts(0), "0+5"},
		{"two_points_one_region", text, "55 4889e5 b801000000 c3", "", arch.Policy{}, pts(0, 1, 4), "0+9"},
		{"two_points_two_regions", text, "b801000000 b902000000 c3", "", arch.Policy{}, pts(0, 5), "0+5 5+5"},
		{"region_made_longer", text, "b801000000 c3", "55", arch.Policy{}, pts(0, 5), "0+6"},
		{"forced_jump_made_longer", text, "b801000000 c3", "55", arch.Policy{Force: jump}, pts(0, 5), "0+6"},
		{"loop_to_the_second", text, "50 ffc8 75fc 58 c3", "55", arch.Policy{Traps: noTraps}, pts(0), "/0 another instruction jumps into the bytes at 1"},
		{"loop_to_the_second_boosted", text, "50 ffc8 75fc 58 c3", "55", arch.Policy{}, pts(0), "0!1"},
		{"loop_to_the_start", text, "ffc8 75fc 58 c3", ints, arch.Policy{}, pts(0), "0+5"},
		{"target_past_the_jump", text, "b801000000 ffc8 75fc c3", ints, arch.Policy{}, pts(0), "0+5"},
		{"call_in_the_middle", text, "ffd0 ffc0 ffc1 ffc2 c3", "55", arch.Policy{Traps: noTraps}, pts(0), "/0 a call stands before the last instruction at 0"},
		{"call_at_the_end", text, "ffc0 ffc1 ffd0 ffc2 c3", "55", arch.Policy{}, pts(0), "0+6"},
		{"point_behind_a_call", text, "ffc0 ffc1 ffd0 ffc2 c3", "55", arch.Policy{Traps: noTraps}, pts(6), "/6 too short for a jump at 8"},
		{"page_crossing", 0x401ffc, "4889e5 b801000000 c3", "", arch.Policy{Traps: noTraps}, pts(0), "/0 the jump would cross a page at 0"},
		{"page_end_fits", 0x401ffb, "4889e5 b801000000 c3", "", arch.Policy{}, pts(0), "0+8"},
		{"page_crossing_from_before", 0x401ff8, "b801000000 90 b902000000 c3", "", arch.Policy{}, pts(5), "0+6"},
		{"syscall_first", text, "0f05 4889c7 c3", "55", arch.Policy{}, pts(0), "0+5"},
		{"syscall_inside", text, "89c1 0f05 89c7 c3", "55", arch.Policy{Traps: noTraps}, pts(0), "/0 a system call in the bytes would restart inside them at 2"},
		{"forced_boost", text, "b801000000 c3", ints, arch.Policy{Force: boost}, pts(0, 5), "0!5 5!1"},
		{"forced_step", text, "b801000000 c3", ints, arch.Policy{Force: step}, pts(0), "0s5"},
		{"forced_boost_no_traps", text, "b801000000 c3", ints, arch.Policy{Force: boost, Traps: noTraps}, pts(0), "/0 no breakpoint may stand here at 0"},
		{"inside_an_instruction", text, "b801000000 c3", ints, arch.Policy{}, pts(2), "/2 not an instruction boundary at 2"},
		{"unresolved_jump", text, "50 58 90 90 90 4801f8 ffe0", "", arch.Policy{Traps: noTraps}, pts(0), "/0 a jump whose targets are not known may lead into the bytes at 8"},
		{"behind_a_lock_prefix_that_is_skipped", text, "7401 f0480fb10b 58 c3", "55", arch.Policy{}, pts(7), "7!1"},
		{"forced_jump_behind_a_skipped_prefix", text, "7401 f0480fb10b 58 c3", "55", arch.Policy{Force: jump}, pts(7), "/7 too short for a jump at 8"},
		{"behind_no_instruction", text, "7401 b006 58 c3", "55", arch.Policy{}, pts(4), "/4 instruction is not known at 3"},
		{"jump_to_the_padding", text, "eb00", ints, arch.Policy{}, pts(0), "0!2"},
		{"unoptimised", text, "55 4889e5 b801000000 c3", "", arch.Policy{Unoptimised: pts(text)}, pts(0), "0!1"},
		{"unoptimised_among_jumps", text, "b801000000 b902000000 ba03000000 c3", ints, arch.Policy{Unoptimised: pts(text + 5)}, pts(0, 5, 10), "0+5 5!5 10+5"},
		{"unoptimised_is_not_swallowed", text, "55 4889e5 b801000000 c3", "", arch.Policy{Unoptimised: pts(text + 4)}, pts(0, 4), "0!1 4!5"},
		{"unoptimised_ends_a_region", text, "b801000000 90 b902000000 c3", ints, arch.Policy{Unoptimised: pts(text + 5)}, pts(0, 5, 6), "0+5 5!1 6+5"},
		{"unoptimised_not_covered_from_before", text, "55 53 b801000000 58 c3", "55", arch.Policy{Unoptimised: pts(text + 7)}, pts(2, 7, 8), "2+5 7!1 8!1"},
		{"unoptimised_not_made_longer", text, "b801000000 c3", "55", arch.Policy{Unoptimised: pts(text + 5)}, pts(0, 5), "0+5 5!1"},
		{"unoptimised_elsewhere", text, "55 4889e5 b801000000 c3", "", arch.Policy{Unoptimised: pts(text + 1)}, pts(0), "0+9"},
		{"unoptimised_no_traps", text, "b801000000 b902000000 c3", "", arch.Policy{Unoptimised: pts(text + 5), Traps: noTraps}, pts(0, 5), "0+5 /5 no breakpoint may stand here at 5"},
		{"unoptimised_no_traps_inside", text, "55 4889e5 b801000000 c3", "", arch.Policy{Unoptimised: pts(text + 1), Traps: noTraps}, pts(0, 1), "/0 the bytes belong to a probe that is to have a breakpoint at 1 /1 no breakpoint may stand here at 1"},
		{"unoptimised_forced_jump", text, "b801000000 b902000000 c3", "", arch.Policy{Unoptimised: pts(text), Force: jump}, pts(0, 5), "5+5 /0 no breakpoint may stand here at 0"},
		{"unoptimised_forced_step", text, "b801000000 b902000000 c3", "", arch.Policy{Unoptimised: pts(text), Force: step}, pts(0, 5), "0s5 5s5"},
		{"unoptimised_can_not_move", text, "cc b801000000 c3", ints, arch.Policy{Unoptimised: pts(text)}, pts(0), "/0 instruction can not run elsewhere at 0"},
		{"int3_can_not_move", text, "cc b801000000 c3", ints, arch.Policy{}, pts(0), "/0 instruction can not run elsewhere at 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := plan(t, c.addr, c.after, c.policy, c.code, c.points...); got != c.want {
				t.Errorf("plan %q, want %q", got, c.want)
			}
		})
	}
}

// TestRegionsOfEveryPoint plans each instruction by itself and all at once.
func TestRegionsOfEveryPoint(t *testing.T) {
	const code = "55 4889e5 4883ec10 85ff 7407 e800000000 ffc7 31c0 eb05 b801000000 c9 c3"
	fl := flowOf(t, Func{}, code)
	var all []uint64
	for a := range fl.All() {
		all = append(all, a-fl.Addr())
		plan(t, fl.Addr(), "cccccccccc", arch.Policy{}, code, a-fl.Addr())
	}
	plan(t, fl.Addr(), "cccccccccc", arch.Policy{}, code, all...)
	plan(t, fl.Addr(), "", arch.Policy{Traps: errors.New("none")}, code, all...)
}

func TestEntryPoint(t *testing.T) {
	const a = 0x1000
	morestack := func(target uint64) bool { return target == 0x5000 }
	for _, c := range []struct {
		name string
		fn   arch.Func
		code string
		want uint64
	}{
		{"c", arch.Func{}, "55 c3", a},
		{"endbr64", arch.Func{}, "f30f1efa 55 c3", a + 4},
		// cmp 16(%r14),%rsp; jbe 1008; nop; ret; call morestack; jmp 1000
		{"go_checks_its_stack", arch.Func{Go: true, Morestack: morestack}, "493b6610 7602 90 c3 e8f33f0000 ebf1", a + 6},
		{"go_pushes_first", arch.Func{Go: true, Morestack: morestack}, "55 493b6610 7602 5d c3 e8f23f0000 ebf1", a},
		{"go_branches_first", arch.Func{Go: true, Morestack: morestack}, "4885c0 7407 493b6610 7602 90 c3 e8ee3f0000 ebec", a},
		{"go_nosplit", arch.Func{Go: true, Morestack: morestack}, "90 c3", a},
		{"go_other_call", arch.Func{Go: true, Morestack: morestack}, "493b6610 7602 90 c3 e8003f0000 ebf1", a},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.fn.Addr, c.fn.Code = a, hexBytes(t, c.code)
			fn, err := X86.Analyse(&c.fn)
			if err != nil {
				t.Fatal(err)
			}
			if got := fn.EntryPoint(); got != c.want {
				t.Errorf("entry %#x, want %#x", got, c.want)
			}
		})
	}
}

func TestInnerAndPatch(t *testing.T) {
	fn, err := X86.Analyse(&arch.Func{Name: "f", Addr: 0x1000, Code: hexBytes(t, "55 4889e5 b801000000 c3")})
	if err != nil {
		t.Fatal(err)
	}
	rs, _ := fn.Plan([]uint64{0x1000}, arch.Policy{})
	if len(rs) != 1 || !slices.Equal(rs[0].Inner(), []uint64{0x1001, 0x1004}) {
		t.Fatalf("regions %+v", rs)
	}
	if b, err := fn.Patch(rs[0], 0x2000); err != nil || !bytes.Equal(b, hexBytes(t, "e9fb0f0000")) {
		t.Errorf("patch % x, %v", b, err)
	}
	if _, err := fn.Patch(rs[0], 0x200000000); err == nil {
		t.Error("a jump of 8 GB")
	}
	if err := fn.Check(0x1002); err == nil || !strings.Contains(err.Error(), "f+0x1 (48 89 e5)") {
		t.Errorf("inside an instruction: %v", err)
	}
	if err := errors.Join(fn.Check(0x1000), fn.Check(0x1001)); err != nil {
		t.Error(err)
	}
}

func TestRIPLoads(t *testing.T) {
	if got := RIPLoads(hexBytes(t, "488b0510000000 90 488d0d20000000"), 0x1000); !slices.Equal(got, []uint64{0x1017, 0x102f}) {
		t.Errorf("RIP-relative operands %#x", got)
	}
}

// A plan that is remembered is not given for points that are to have breakpoints now, nor
// for others than these.
func TestPlanAnewForUnoptimised(t *testing.T) {
	fn, err := X86.Analyse(&arch.Func{Name: "f", Addr: 0x1000, Code: hexBytes(t, "b801000000 b902000000 c3")})
	if err != nil {
		t.Fatal(err)
	}
	points := []uint64{0x1000, 0x1005}
	for _, slow := range [][]uint64{nil, {0x1000}, {0x1005}, nil, points} {
		regions, refused := fn.Plan(points, arch.Policy{Unoptimised: slow})
		if len(regions) != 2 || len(refused) != 0 {
			t.Fatalf("unoptimised %#x: %d regions, refused %v", slow, len(regions), refused)
		}
		for _, r := range regions {
			trap := slices.Contains(slow, r.Start())
			if (r.Tactic() == arch.TacticBoost) != trap || (r.Why() != nil) != trap {
				t.Errorf("unoptimised %#x: %s at %#x because of %v", slow, r.Tactic(), r.Start(), r.Why())
			}
		}
	}
}
