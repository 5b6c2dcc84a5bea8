// Command goloads calls a function with numbers that a probe may take for pointers, good and bad ones, on its first
// thread. Between a command and its answer that thread makes no system call of its own.
//
//	goloads              commands: go N (calls Look N times), good N (with good pointers only), quit; built with the tag
//	                     acts own N too (sets the action of SIGSEGV to the default by the system call itself)
//
// Built with the tag masks it has commands in which C code changes masks and handlers between three times N calls: block N, action N, back N (from C), leave N (N calls, and the action of SIGSEGV is the default from then on), return N (and it is the old one again) and
// thread N (on a thread that C has made).
//
// Before main it calls Deref with a nil pointer and recovers.
//
// An answer has the process's id, the number of calls, how many were given a bad pointer, and how many had a wrong result.
package main

import (
	"bufio"
	"fmt"
	"log"
	"os"
	"runtime"
	"runtime/debug"
	"syscall"
	"unsafe"
)

func init() {
	runtime.LockOSThread()
	defer func() {
		if recover() == nil {
			log.Fatal("a nil pointer was read")
		}
	}()
	Deref(nil, 3)
}

// Deref reads through p in the middle of a frame, between calls.
//
//go:noinline
func Deref(p *[2]uintptr, n uintptr) uintptr {
	var words [64]uintptr
	words[n] = next(n)
	return next(p[1]) + words[n&1]
}

//go:noinline
func next(n uintptr) uintptr { return n + 1 }

var text = [16]byte{'a', ' ', 't', 'e', 'x', 't'}

// Look returns p+1.
//
//go:noinline
func Look(p uintptr) uintptr { return p + 1 }

// pointers are what Look is called with, in turn: good and bad ones.
func pointers() (good, bad []uintptr) {
	page := os.Getpagesize()
	edge, err := syscall.Mmap(-1, 0, 2*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		log.Fatal(err)
	}
	for i := range page {
		edge[i] = 'x'
	}
	if err := syscall.Mprotect(edge[page:], syscall.PROT_NONE); err != nil {
		log.Fatal(err)
	}
	f, err := os.CreateTemp("", "goloads")
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	if err := os.Remove(f.Name()); err != nil {
		log.Fatal(err)
	}
	beyond, err := syscall.Mmap(int(f.Fd()), 0, page, syscall.PROT_READ, syscall.MAP_SHARED) // reading there is a SIGBUS
	if err != nil {
		log.Fatal(err)
	}
	at := func(p *byte) uintptr { return uintptr(unsafe.Pointer(p)) }
	bad = []uintptr{0, 1, 1<<63 + 8, at(&edge[page]), at(&edge[page-4]), at(unsafe.SliceData(beyond)), ^uintptr(0)}
	return []uintptr{at(&text[0])}, bad
}

// own sets the action of SIGSEGV.
var own = func() {}

// does has commands that call what they are given a few times.
var does = map[string]func(look func()){}

func main() {
	debug.SetGCPercent(-1)
	good, bad := pointers()
	all := append(good, bad...)
	pid := os.Getpid()
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan() && in.Text() != "quit"; {
		var n, wrong, faults int
		var which string
		if _, err := fmt.Sscanf(in.Text(), "%s %d", &which, &n); err != nil {
			log.Fatalf("%q: %v", in.Text(), err)
		}
		of := len(all)
		switch which {
		case "good":
			of = len(good)
		case "own":
			own()
		}
		calls := 0
		look := func() {
			for i := range n {
				k := i % of
				if calls++; k >= len(good) {
					faults++
				}
				if Look(all[k]) != all[k]+1 {
					wrong++
				}
			}
		}
		if do := does[which]; do != nil {
			do(look)
		} else {
			look()
		}
		fmt.Printf("{\"pid\":%d,\"calls\":%d,\"faults\":%d,\"bad\":%d}\n", pid, calls, faults, wrong)
	}
}
