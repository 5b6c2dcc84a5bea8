package process

import (
	"errors"
	"testing"

	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/testprog"
)

// Run may come while a stop is worked in, as when the optimiser is at it: it waits until that is over, and has only what Start
// has made go on.
func TestRunDuringStop(t *testing.T) {
	for _, c := range []struct {
		name string
		open func() (*Proc, *Stopped, error)
	}{
		{"attached", func() (*Proc, *Stopped, error) {
			p, err := OpenUnwaited(testprog.Start(t, testprog.Build(t, "crowd"), "1").PID)
			return p, nil, err
		}},
		{"started", func() (*Proc, *Stopped, error) { return Start(&Command{Path: "sleep", Args: []string{"infinity"}}) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, held, err := c.open()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { p.Close() })
			if held != nil {
				t.Cleanup(func() { _ = p.Signal(9); _, _ = p.Wait() })
			}
			tg, err := Attach(p, &TargetOptions{Stopped: held})
			if err != nil {
				t.Fatal(err)
			}
			comes, ran := make(chan struct{}), make(chan error, 1)
			err = tg.stopped(func(s *ptrace.Stopped) error {
				go func() {
					close(comes)
					ran <- tg.Run()
				}()
				<-comes
				for range 100 {
					if _, err := s.Dispositions(); err != nil {
						return err
					}
				}
				select {
				case <-ran:
					return errors.New("Run did not wait")
				default:
				}
				return nil
			})
			if err := errors.Join(err, <-ran); err != nil {
				t.Fatal(err)
			}
			untouched(t, p)
			if err := tg.stopped(func(*ptrace.Stopped) error { return nil }); err != nil {
				t.Error(err)
			}
			untouched(t, p)
		})
	}
}
