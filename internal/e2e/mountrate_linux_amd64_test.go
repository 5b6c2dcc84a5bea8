package e2e

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/ringpage"
)

// BenchmarkMountRaw tells how many records a second leave through trace_pipe_raw, of a program that has so many hits a second, for a second,
// and what one costs who holds it. Those that came and those that are told as lost make up all calls.
func BenchmarkMountRaw(b *testing.B) {
	for _, rate := range []int{1_000_000, 5_000_000} {
		b.Run(fmt.Sprintf("%dM", rate/1_000_000), func(b *testing.B) {
			p := program(b, "rate")
			m := mount(b, p)
			m.is("echo 400000 > buffer_size_kb; echo 'p:a rate_call' > kprobe_events; echo 1 > events/kprobes/a/enable", "")
			holder := holderPID(b, p.PID)
			var pages []*os.File
			for _, pipe := range strings.Fields(m.sh("ls -d per_cpu/cpu*/trace_pipe_raw")) {
				f, err := os.Create(filepath.Join(b.TempDir(), "pages"))
				if err != nil {
					b.Fatal(err)
				}
				cat := exec.Command("cat", filepath.Join(m.dir, pipe))
				cat.Stdout = f
				if err := cat.Start(); err != nil {
					b.Fatal(err)
				}
				b.Cleanup(func() {
					_ = cat.Process.Kill()
					_ = cat.Wait()
					f.Close()
				})
				pages = append(pages, f)
			}
			p.Counts(fmt.Sprintf("rate %d", rate))
			var all, took uint64
			before := processTime(b, holder)
			for b.Loop() {
				n := right(b, p, fmt.Sprintf("go %d", rate))
				all, took = n["calls"], took+n["ns"]
			}
			cost := processTime(b, holder) - before
			quiet := func() bool { return strings.Count(m.sh("cat per_cpu/cpu*/stats"), "entries: 0\n") == len(pages) }
			within(b, "all records are read", quiet)
			all += uint64(len(pages)) // each CPU's losses are told before a record
			for cpu := range pages {
				var set unix.CPUSet
				set.Set(cpu)
				if err := unix.SchedSetaffinity(p.PID, &set); err != nil {
					b.Fatal(err)
				}
				right(b, p, "go 1")
			}
			within(b, "all records are read", quiet)
			var came, lost uint64
			within(b, "all records are written", func() bool {
				came, lost = 0, 0
				for _, f := range pages {
					n, l := countPages(b, f)
					came, lost = came+n, lost+l
				}
				return came+lost >= all
			})
			if came+lost != all {
				b.Errorf("%d calls: %d records, and %d told as lost", all, came, lost)
			}
			b.ReportMetric(float64(all)/float64(took)*1e3, "M-calls/s")
			b.ReportMetric(100*float64(lost)/float64(all), "%lost")
			b.ReportMetric(float64(cost)/float64(came), "holder-ns/record")
		})
	}
}

// processTime is the CPU time of a process until now.
func processTime(t testing.TB, pid int) time.Duration {
	t.Helper()
	var ts unix.Timespec
	const scheduler = 2 // CPUCLOCK_SCHED
	if err := unix.ClockGettime(int32(^pid<<3|scheduler), &ts); err != nil {
		t.Fatal(err)
	}
	return time.Duration(ts.Nano())
}

// countPages counts the records in a file of pages, and those that the pages tell as lost.
func countPages(t testing.TB, f *os.File) (records, lost uint64) {
	t.Helper()
	var page [ringpage.PageSize]byte
	for off := int64(0); ; off += int64(len(page)) {
		if _, err := f.ReadAt(page[:], off); err == io.EOF {
			return records, lost
		} else if err != nil {
			t.Fatal(err)
		}
		l, err := ringpage.Read(page[:], func(_ uint64, data []byte) error {
			if binary.LittleEndian.Uint16(data) >= ringpage.FirstID {
				records++
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		lost += l.N
	}
}
