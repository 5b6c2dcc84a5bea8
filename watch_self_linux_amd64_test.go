//go:build !race

package kprobes_test

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
)

// watchedWords are words that watchpoints watch, each in a cache line of its own.
var watchedWords [5][8]uint64

// writeWatched writes a word n times.
//
//go:noinline
func writeWatched(word *uint64, n uint64) {
	for i := range n {
		*word = i
	}
}

// watchDef is the definition of a watchpoint for a word, without its arguments.
func watchDef(name, access string, word *uint64) string {
	return fmt.Sprintf("w:%s %s@0x%x:8", name, access, uintptr(unsafe.Pointer(word)))
}

// onThreads calls f in n goroutines, each on a thread that ends with it.
func onThreads(n int, f func()) {
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			runtime.LockOSThread() // without an unlock: the thread ends with its goroutine
			f()
		})
	}
	wg.Wait()
}

// openWatches counts the process's descriptors of perf events. Others come and go by themselves.
func openWatches(t *testing.T) (n int) {
	t.Helper()
	const dir = "/proc/self/fd/"
	d, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range d {
		if to, err := os.Readlink(dir + e.Name()); err == nil && to == "anon_inode:[perf_event]" {
			n++
		}
	}
	return n
}

// readWatched polls until f has been given n hits of an event, and for a moment more.
func readWatched(t *testing.T, core *kprobes.Core, name string, n int, f func(*kprobes.Hit)) {
	t.Helper()
	read := 0
	take := func(h *kprobes.Hit) {
		if h.Event.Name == name {
			read++
			f(h)
		}
	}
	for end := time.Now().Add(2 * time.Minute); read < n && time.Now().Before(end); {
		core.Poll(take)
	}
	time.Sleep(10 * time.Millisecond)
	core.Poll(take)
	if read != n {
		t.Errorf("%s: %d records, want %d", name, read, n)
	}
}

// Threads that were there and threads that come write a word: each write is told once, with the function and the line of the
// instruction. Off for a while the watchpoint tells nothing. At its end no descriptor is left.
func TestSelfWatch(t *testing.T) {
	const threads, writes = 4, 500
	const want = (2*threads + 1) * writes
	core, _ := withEvents(t, "p:unwatched "+selfPrefix+"writeWatched")
	before := openWatches(t)
	word := &watchedWords[0][0]
	begin, done := make(chan struct{}), make(chan struct{})
	var ready sync.WaitGroup
	ready.Add(threads)
	go func() {
		defer close(done)
		onThreads(threads, func() {
			ready.Done()
			<-begin
			writeWatched(word, writes)
		})
	}()
	ready.Wait()
	evs := addEvents(t, core, nil, watchDef("written", "w", word)+" at=$addr")
	close(begin)
	<-done
	onThreads(threads, func() { writeWatched(word, writes) })
	must(t, core.SetEnabled(false))
	onThreads(1, func() { writeWatched(word, writes) })
	must(t, core.SetEnabled(true))
	onThreads(1, func() { writeWatched(word, writes) })
	tids := map[int]bool{}
	readWatched(t, core, "written", want, func(h *kprobes.Hit) {
		tids[h.TID] = true
		s, ok := core.Symbol(h.Addr())
		lines := core.Lines(h.Addr())
		if !ok || h.Before || s.Name != selfPrefix+"writeWatched" || len(lines) == 0 || !strings.HasSuffix(lines[0].File, "watch_self_linux_amd64_test.go") {
			t.Fatalf("0x%x: %+v %v %v", h.Addr(), s, lines, h.Before)
		}
		if at := h.Value("at"); at != uint64(uintptr(unsafe.Pointer(word))) {
			t.Fatalf("at %v", at)
		}
	})
	if c := core.Counts(evs[0]); c.Hits != want || c.Read != want || c.Lost != 0 || len(tids) < threads {
		t.Errorf("%+v by threads %v, want %d", c, tids, want)
	}
	if n := openWatches(t); n <= before {
		t.Errorf("%d descriptors of perf events are open, %d before: they are not seen", n, before)
	}
	must(t, core.Remove(evs))
	core.Poll(func(*kprobes.Hit) {})
	if n := openWatches(t); n != before {
		t.Errorf("%d descriptors of perf events are open, %d before", n, before)
	}
}

// storeWatched stores an id, which a watchpoint finds in %bx.
//
//go:noinline
func storeWatched(word *uint64, id uint64) { *word = id }

// Threads come and go while watchpoints are armed: no store is told twice, and each that began behind the arming is told.
func TestSelfWatchMeanwhile(t *testing.T) {
	const rounds = 10
	core, _ := withEvents(t, "p:unwatched "+selfPrefix+"writeWatched")
	word := &watchedWords[0][0]
	var id, made atomic.Uint64
	stop := make(chan struct{})
	var makers sync.WaitGroup
	for range 2 {
		makers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				onThreads(1, func() {
					made.Add(1)
					for range 3 {
						storeWatched(word, id.Add(1))
					}
				})
			}
		})
	}
	for range rounds {
		evs := addEvents(t, core, nil, watchDef("stored", "w", word)+" id=%bx:u64")
		first := id.Load() + 1
		for from := made.Load(); made.Load() < from+50; {
			runtime.Gosched()
		}
		last := id.Load() - 8 // the stores of those behind may not have been made
		told := map[uint64]int{}
		must(t, core.Remove(evs))
		for range 3 {
			core.Poll(func(h *kprobes.Hit) {
				if h.Event.Name == "stored" {
					told[h.Value("id").(uint64)]++
				}
			})
			time.Sleep(5 * time.Millisecond)
		}
		for n := first; n <= last; n++ {
			if told[n] == 0 {
				t.Errorf("store %d of %d to %d is not told", n, first, last)
			}
		}
		for n, times := range told {
			if times != 1 {
				t.Errorf("store %d is told %d times", n, times)
			}
		}
		if c := core.Counts(evs[0]); c.Lost != 0 || c.Hits != uint64(len(told)) || last < first {
			t.Errorf("%+v, %d are told, %d to %d", c, len(told), first, last)
		}
	}
	close(stop)
	makers.Wait()
}

// The processor has four watchpoints. The fifth is refused, and the message names the four.
func TestSelfWatchFull(t *testing.T) {
	var texts []string
	for i := range 4 {
		texts = append(texts, watchDef(fmt.Sprintf("word%d", i), "rw", &watchedWords[i][0]))
	}
	core, evs := withEvents(t, texts...)
	d, err := event.Parse(watchDef("fifth", "w", &watchedWords[4][0]))
	must(t, err)
	open := openWatches(t)
	if _, err := core.Add([]*event.Def{d}, nil); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "by word0, word1, word2, word3 here") {
		t.Errorf("%v, want ENOSPC and who has them", err)
	}
	if n := openWatches(t); n != open {
		t.Errorf("%d descriptors of perf events are open behind the refusal, %d before", n, open)
	}
	for i := range 4 {
		onThreads(1, func() { writeWatched(&watchedWords[i][0], uint64(i)+1) })
	}
	readWatched(t, core, "word3", 4, func(*kprobes.Hit) {}) // and those of all others
	for i, e := range evs {
		if c := core.Counts(e); c.Hits != uint64(i)+1 {
			t.Errorf("%s: %+v, want %d", e.Name, c, i+1)
		}
	}
}

// Who reads records may write what is watched: a Poll ends, and the next one tells of its writes.
func TestSelfWatchReader(t *testing.T) {
	word := &watchedWords[0][0]
	core, evs := withEvents(t, watchDef("read", "w", word))
	counted := addEvents(t, core, &kprobes.AddOptions{Count: true}, watchDef("counted", "w", word))
	defer func() { must(t, core.Remove(counted)) }()
	writeWatched(word, 3)
	const more = 100
	left := more
	readWatched(t, core, "read", 3+more, func(*kprobes.Hit) {
		if left > 0 {
			left--
			writeWatched(word, 1)
		}
	})
	for _, e := range append(evs, counted...) {
		if c := core.Counts(e); c.Hits != 3+more || c.Lost != 0 {
			t.Errorf("%s: %+v, want %d", e.Name, c, 3+more)
		}
	}
}
