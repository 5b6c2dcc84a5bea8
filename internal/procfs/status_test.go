package procfs

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseStatus(t *testing.T) {
	const text = "Name:\ta\\nb c\nUmask:\t0022\nState:\tt (tracing stop)\nTgid:\t12\nNgid:\t0\nPid:\t13\nPPid:\t1\nTracerPid:\t99\n" +
		"Uid:\t1\t2\t3\t4294967294\nGid:\t5\t6\t7\t8\nNStgid:\t12\t3\nNSpid:\t13\t4\nThreads:\t2\nSigPnd:\t0000000000000001\n" +
		"ShdPnd:\t0000000000000200\nSigBlk:\t0000000080000000\nSigIgn:\t0000000000001000\nSigCgt:\t0000000100000010\nNoNewPrivs:\t1\n" +
		"Seccomp:\t2\nSeccomp_filters:\t3\nSome thing new:\t:::\nx86_Thread_features:\tshstk wrss\nx86_Thread_features_locked:\n"
	got, err := ParseStatus(text)
	if err != nil {
		t.Fatal(err)
	}
	want := &Status{
		Name: `a\nb c`, State: "t", TGID: 12, TID: 13, PPID: 1, TracerPID: 99, UID: [4]uint32{1, 2, 3, 4294967294}, GID: [4]uint32{5, 6, 7, 8},
		NSTGID: []int{12, 3}, NSTID: []int{13, 4}, Threads: 2, NoNewPrivs: true, Seccomp: SeccompFilter, Filters: 3,
		SigPnd: 1, ShdPnd: 0x200, SigBlk: 0x80000000, SigIgn: 0x1000, SigCgt: 0x100000010, ShadowStack: true,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if !got.Blocks(32) || got.Blocks(31) || !got.Catches(5) || got.Catches(6) || !got.Ignores(13) || got.Ignores(12) {
		t.Error("signal sets are read off by one")
	}
	for _, bad := range []string{"", "Tgid:\t1\n", "Tgid:\tx\nPid:\t1\n", "Tgid:\t1\nPid:\t1\nUid:\t1 2 3\n", "Tgid:\t1\nPid:\t1\nSigBlk:\tg\n"} {
		if s, err := ParseStatus(bad); err == nil {
			t.Errorf("%q gave %+v", bad, s)
		}
	}
}

func TestParseStat(t *testing.T) {
	const tail = " S 1 2 3 4 5 4194304 7 8 9 10 11 12 13 14 15 16 17 18 4321 20 21 22 140 24 280 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 470 44 45 46 47\n"
	for name, text := range map[string]string{
		"a":              "1 (a)" + tail,
		"b) R 2 3 4 (c)": "1 (b) R 2 3 4 (c))" + tail,
		"":               "1 ()" + tail,
		"new\nline":      "1 (new\nline)" + tail,
	} {
		got, err := ParseStat(text)
		if err != nil {
			t.Errorf("%q: %v", name, err)
			continue
		}
		if got.Comm != name || got.State != 'S' || got.PPID != 1 || got.Flags != 4194304 || got.Start != 4321 || got.StartCode != 140 || got.StartStack != 280 {
			t.Errorf("%q: %+v", name, got)
		}
	}
	for _, bad := range []string{"", "1 a", "1 (a", "1 (a) S 1 2", "1 (a)", "1 (a) SS" + tail[2:], "1 (a) S x" + tail[4:]} {
		if s, err := ParseStat(bad); err == nil {
			t.Errorf("%q gave %+v", bad, s)
		}
	}
}

// The kernel's own text, of this process, where there is one.
func TestParseOwnStatus(t *testing.T) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	st, err := ParseStatus(string(b))
	if err != nil || st.TGID != os.Getpid() || st.Threads < 1 || st.PPID != os.Getppid() {
		t.Errorf("%+v, %v", st, err)
	}
	b, err = os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	if s, err := ParseStat(string(b)); err != nil || s.PPID != os.Getppid() || s.Start == 0 {
		t.Errorf("%+v, %v", s, err)
	}
}
