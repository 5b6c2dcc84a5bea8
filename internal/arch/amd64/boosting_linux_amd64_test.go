package amd64

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/arch"
)

// docTable gives the rows of the table in a page whose head starts with a word, cell by cell.
func docTable(t *testing.T, page, head string) (rows [][]string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../../docs", page))
	if err != nil {
		t.Fatal(err)
	}
	in := false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "| "+head+" |"):
			in = true
		case !strings.HasPrefix(line, "|"):
			in = false
		case in && !strings.HasPrefix(line, "|---"):
			cells := strings.Split(strings.Trim(line, "|"), "|")
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			rows = append(rows, cells)
		}
	}
	if len(rows) == 0 {
		t.Fatalf("docs/%s has no table that starts with %q", page, head)
	}
	return rows
}

// boostRow is a row of the table of classes in docs/boosting.md.
type boostRow struct {
	class, here, copied, stepped, linux string
	code                                []byte
}

func boostRows(t *testing.T) (rows []boostRow) {
	t.Helper()
	for _, c := range docTable(t, "boosting.md", "class") {
		if len(c) != 6 {
			t.Fatalf("%q: %d cells, want 6", c, len(c))
		}
		code, err := hex.DecodeString(strings.ReplaceAll(strings.Trim(c[1], "`"), " ", ""))
		if err != nil {
			t.Fatalf("%q: %v", c, err)
		}
		rows = append(rows, boostRow{c[0], c[2], c[3], c[4], c[5], code})
	}
	return rows
}

// TestBoosting holds the table of classes in docs/boosting.md to the planner and to the rules of
// Linux, and runs each row: a breakpoint takes one trap, a step another one, and nothing else
// differs.
func TestBoosting(t *testing.T) {
	r := newFuzzRunner(t)
	for _, row := range boostRows(t) {
		t.Run(strings.ReplaceAll(row.class, " ", "_"), func(t *testing.T) {
			in, err := Decode(row.code)
			if err != nil || int(in.Len) != len(row.code) {
				t.Fatalf("% x: length %d, %v", row.code, in.Len, err)
			}
			if got := linuxKprobe(&in); got != row.linux {
				t.Errorf("Linux: %s, the page says %s", got, row.linux)
			}
			c := newFuzzCase(row.code, 4, howAsIs)
			if c == nil {
				t.Fatalf("% x is not run", row.code)
			}
			row.plan(t, c)
			if row.here == string(arch.TacticBoost) {
				row.run(t, c, r)
			}
		})
	}
}

// plan asks the planner.
func (row *boostRow) plan(t *testing.T, c *fuzzCase) {
	t.Helper()
	regions, refused := c.fn.Plan([]uint64{c.addr}, arch.Policy{})
	if reason, ok := strings.CutPrefix(row.here, "refused: "); ok {
		if len(regions) != 0 || refused[c.addr] == nil || !strings.HasSuffix(refused[c.addr].Error(), reason) {
			t.Errorf("%d regions, refused: %v, the page says %s", len(regions), refused[c.addr], reason)
		}
		return
	}
	for _, p := range []arch.Policy{{Unoptimised: []uint64{c.addr}}, {Force: arch.TacticBoost}} {
		if regions, refused = c.fn.Plan([]uint64{c.addr}, p); len(regions) != 1 || string(regions[0].Tactic()) != row.here {
			t.Errorf("%+v: regions %v, refused %v, the page says %s", p, regions, refused, row.here)
		}
	}
}

// run counts the traps that each way takes, beside those of the original.
func (row *boostRow) run(t *testing.T, c *fuzzCase, r *fuzzRunner) {
	t.Helper()
	jobs := []*fuzzJob{&c.job}
	var forms []*fuzzForm
	for _, tactic := range []arch.Tactic{arch.TacticBoost, arch.TacticStep} {
		f, err := c.form(&r.writer, tactic)
		if err != nil || f == nil {
			t.Fatalf("%s: no detour, %v", tactic, err)
		}
		forms, jobs = append(forms, f), append(jobs, &f.job)
	}
	out, dead, err := r.run(jobs)
	if err != nil || dead >= 0 {
		t.Fatalf("%v, job %d ended the process", err, dead)
	}
	for i, f := range forms {
		want := "1"
		if f.tactic == arch.TacticStep {
			want = row.stepped
		}
		if got := fmt.Sprint(out[i+1].Traps - out[0].Traps); got != want && out[0].Sig != sigIll { // else the processor does not know the instruction
			t.Errorf("%s took %s traps, the page says %s", f.tactic, got, want)
		}
		if d := c.compare(&out[0], &out[i+1], f); d != "" && !unsteady(row.class) {
			t.Errorf("%s: %s", f.tactic, d)
		}
	}
	if got := row.copyOf(c, forms[0]); got != row.copied {
		t.Errorf("copied: %s, the page says %s", got, row.copied)
	}
}

// unsteady names the rows whose registers are others each time.
func unsteady(class string) bool { return class == "rdtsc" }

// copyOf tells how the copy differs from the original.
func (row *boostRow) copyOf(c *fuzzCase, f *fuzzForm) string {
	p := f.pairs[0]
	b := f.code[p.Copy-f.at : p.CopyEnd-f.at]
	in := &c.insts[0]
	switch {
	case bytes.Equal(b, row.code):
		return "same"
	case len(b) == len(row.code) && in.RelLen == 4 && bytes.Equal(b[:in.RelOff], row.code[:in.RelOff]) && in.Kind != KindCall && in.Kind != KindJmp:
		return "displacement"
	}
	return "other"
}

// linuxTwoByte are the opcodes behind 0F that Linux 6.18 boosts (twobyte_is_boostable).
var linuxTwoByte = ops(0x02, 0x03, 0x06, 0x06, 0x08, 0x09, 0x1f, 0x23, 0x31, 0x31, 0x40, 0x4f, 0x60, 0x6b, 0x6e, 0x6f, 0x74, 0x77,
	0x7e, 0x7f, 0x90, 0x9f, 0xa0, 0xa1, 0xa3, 0xa5, 0xa8, 0xa9, 0xab, 0xad, 0xaf, 0xaf, 0xb0, 0xb7, 0xbb, 0xbf, 0xc0, 0xc1, 0xc8, 0xcf,
	0xd1, 0xd3, 0xd5, 0xd5, 0xd8, 0xd9, 0xdb, 0xdd, 0xdf, 0xdf, 0xe1, 0xe2, 0xe5, 0xe5, 0xe8, 0xe9, 0xeb, 0xed, 0xef, 0xef,
	0xf1, 0xf3, 0xf5, 0xf5, 0xf8, 0xfa, 0xfc, 0xfe)

// linuxKprobe says what Linux 6.18 does with a kprobe on an instruction (can_boost and
// prepare_emulation in arch/x86/kernel/kprobes/core.c), its exception table apart.
func linuxKprobe(in *Inst) string {
	switch {
	case in.Kind == KindInt3 && in.Opcode == 0xcc:
		return "refused"
	case linuxBoosts(in):
		return "boost"
	case linuxEmulates(in):
		return "emulated"
	}
	return "step"
}

func linuxBoosts(in *Inst) bool {
	op, reg := in.Opcode, in.ModRM>>3&7
	switch {
	case in.Enc != EncLegacy || in.Map != MapOne && in.Map != Map0F:
		return false
	case in.Map == Map0F:
		return slices.Contains(linuxTwoByte, op)
	case in.Prefix&(PrefixAddrSize|PrefixCS) != 0:
		return false
	case op >= 0x70 && op <= 0x7f, op >= 0xcc && op <= 0xce, op == 0xd6, op >= 0xd8 && op <= 0xdf, op >= 0xe0 && op <= 0xe3,
		op == 0xe8, op == 0xe9, op == 0xeb, op >= 0xf0 && op <= 0xf4:
		return false
	case op == 0xc0, op == 0xc1, op >= 0xd0 && op <= 0xd3:
		return reg != 6
	case op == 0xf6, op == 0xf7:
		return reg != 1
	case op == 0xfe:
		return reg < 2
	case op == 0xff:
		return reg < 2 || reg == 4
	}
	return true
}

func linuxEmulates(in *Inst) bool {
	switch in.Kind {
	case KindJmp, KindJcc, KindLoop, KindCall, KindRet:
		return true
	case KindCallInd, KindJmpInd:
		return in.Mod() == 3
	}
	return false
}

// boostShares counts the places of a program by what a breakpoint does there.
type boostShares struct {
	places  int
	tactics map[arch.Tactic]int
	refused map[string]int
	linux   map[string]int
}

// measure plans a breakpoint at each place of the functions that are given, one in each.
func (s *boostShares) measure(t *testing.T, im *image, f imageFunc, isGo bool) {
	t.Helper()
	fl := im.analyse(t, f, isGo)
	defer fl.release()
	best, forced := &Regions{Flow: fl}, &Regions{Flow: fl, Policy: arch.Policy{Force: arch.TacticBoost}}
	for a, in := range fl.All() {
		if ok, _ := fl.Boundary(a); !ok || in.Kind == KindInt3 {
			continue
		}
		s.places++
		s.linux[linuxKprobe(in)]++
		regions, refused := forced.Plan([]uint64{a})
		if len(regions) == 1 {
			s.tactics[regions[0].Tactic()]++
			continue
		}
		ref := refused[a]
		s.refused[refusedFor(ref)]++
		if ref.Rule == RuleRelocate && Relocatable(in, fl.Bytes(a, int(in.Len))) == nil {
			t.Errorf("%s: 0x%x is refused, and can be moved: %v", f.name, a, ref)
		}
		if regions, _ := best.Plan([]uint64{a}); len(regions) == 1 && regions[0].Trap != "" {
			t.Errorf("%s: 0x%x has tactic %s, and no breakpoint if that is forced: %v", f.name, a, regions[0].Trap, ref)
		}
	}
}

// refusedFor is the reason of a refusal as docs/boosting.md has it.
func refusedFor(ref *Refusal) string {
	var re *RelocError
	if errors.As(ref, &re) {
		return re.Reason
	}
	return string(ref.Rule)
}

// TestBoostingOfPrograms holds the shares in docs/boosting.md to what the planner does with real
// programs: nothing is stepped, and whatever is refused is named there.
func TestBoostingOfPrograms(t *testing.T) {
	const tolerance = 1.0 // per cent
	reasons := map[string]bool{}
	for _, c := range docTable(t, "boosting.md", "reason") {
		reasons[c[0]] = true
	}
	files := map[string]string{"libc.so.6": relocLib(t, "libc.so.6"), "gdb": relocTool(t, "gdb"), "go": goCommand(t)}
	rows := docTable(t, "boosting.md", "program")
	if len(rows) != len(files) {
		t.Errorf("%d programs are told of, want %d", len(rows), len(files))
	}
	for _, row := range rows {
		s := boostShares{tactics: map[arch.Tactic]int{}, refused: map[string]int{}, linux: map[string]int{}}
		im := openImage(t, files[row[0]])
		for _, f := range im.funcs {
			s.measure(t, im, f, row[0] == "go")
		}
		s.compare(t, row, reasons, tolerance)
	}
}

// compare holds what was counted to a row of docs/boosting.md, within per cents.
func (s *boostShares) compare(t *testing.T, row []string, reasons map[string]bool, tolerance float64) {
	t.Helper()
	t.Logf("%s: %d places, %v", row[0], s.places, s.tactics)
	refused := 0
	for _, reason := range slices.Sorted(maps.Keys(s.refused)) {
		t.Logf("%8d %s", s.refused[reason], reason)
		refused += s.refused[reason]
		if !reasons[reason] {
			t.Errorf("%s: refused for a reason that the page does not name: %s", row[0], reason)
		}
	}
	if s.places < 100000 || s.tactics[arch.TacticStep] != 0 || s.tactics[arch.TacticBoost]+refused != s.places {
		t.Errorf("%s: %d places, tactics %v, %d refused", row[0], s.places, s.tactics, refused)
	}
	for i, n := range []int{s.tactics[arch.TacticBoost], s.tactics[arch.TacticStep], refused, s.linux["boost"], s.linux["emulated"], s.linux["step"]} {
		told, err := strconv.ParseFloat(row[1+i], 64)
		if share := 100 * float64(n) / float64(s.places); err != nil || math.Abs(share-told) > tolerance {
			t.Errorf("%s: column %d is %.3f, the page says %s", row[0], 1+i, share, row[1+i])
		}
	}
}
