// Program blocked does all that makes its threads run code with signals blocked: it
// handles signals of every kind, makes and ends threads, and forks. With cgo, threads
// that C makes call into Go and get signals too. It prints nothing and ends by itself.
package main

import (
	"crypto/rand"
	"io"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/pprof"
	"sync"
	"syscall"
	"time"
)

func main() {
	begin := make(chan os.Signal, 1)
	signal.Notify(begin, syscall.SIGUSR1)
	kill(syscall.SIGUSR1)
	<-begin // whoever traces looks at the memory now
	if err := pprof.StartCPUProfile(io.Discard); err != nil {
		log.Fatal(err)
	}
	for range 3 {
		faults()
		threads()
		fork()
		spin()
		kill(syscall.SIGUSR1)
		<-begin
		everyThread()
		foreign()
	}
	pprof.StopCPUProfile()
}

func kill(s syscall.Signal) {
	if err := syscall.Kill(syscall.Getpid(), s); err != nil {
		log.Fatal(err)
	}
}

var nowhere *int

// faults gets signals that become panics.
func faults() {
	for range 3 {
		func() {
			defer func() {
				if recover() == nil {
					log.Fatal("no panic")
				}
			}()
			*nowhere = 1
		}()
	}
}

var kept [][]byte

// threads makes threads and ends them, by goroutines that do not give theirs back.
func threads() {
	var wg sync.WaitGroup
	for range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			runtime.LockOSThread()
			buf := make([]byte, 100)
			if _, err := rand.Read(buf); err != nil {
				log.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}()
	}
	wg.Wait()
}

func fork() {
	if err := exec.Command("/bin/true").Run(); err != nil {
		log.Fatal(err)
	}
}

// spin lets loops without calls be interrupted by the collector.
func spin() {
	var begun, stop sync.WaitGroup
	end := make(chan struct{})
	for range 2 {
		begun.Add(1)
		stop.Add(1)
		go func() {
			defer stop.Done()
			begun.Done()
			for n := 1; ; n++ {
				if n%100_000_000 == 0 {
					select {
					case <-end:
						return
					default:
					}
				}
			}
		}()
	}
	kept = append(kept, make([]byte, 1<<16))
	begun.Wait()
	runtime.GC()
	close(end)
	stop.Wait()
}

// everyThread makes a system call on all threads, by a signal; with cgo it is not to be had.
func everyThread() {
	_, _, e := syscall.AllThreadsSyscall(syscall.SYS_GETPPID, 0, 0, 0)
	if e != 0 && e != syscall.ENOTSUP {
		log.Fatal(e)
	}
}
