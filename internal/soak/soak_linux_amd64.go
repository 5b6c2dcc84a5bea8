package soak

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Options say what Run does.
type Options struct {
	Dir      string        // where it works
	For      time.Duration // 0: as Rounds says
	Rounds   int           // of each program
	Programs []string      // nil: all
	Seed     uint64        // of the first round
	Probes   int           // of a round
	Size     int           // of the input; 1 is small
}

// Summary adds rounds up.
type Summary struct {
	Rounds, Programs, Probes, Armed, ByCall, ByKernel, Seen, Unsteady, Toggles int
	Hits, Records, Lost                                                        uint64
	Left, Refused, Tactics, Modes                                              map[string]int
}

func (s *Summary) add(r *Round) {
	s.Rounds++
	s.Probes += r.Probes
	s.Armed += r.Armed
	s.ByCall += r.ByCall
	s.ByKernel += r.ByKernel
	s.Seen += r.Seen
	s.Unsteady += r.Unsteady
	s.Toggles += r.Toggles
	s.Hits += r.Hits
	s.Records += r.Records
	s.Lost += r.Lost
	for _, m := range []struct{ to, from map[string]int }{{s.Left, r.Left}, {s.Refused, r.Refused}, {s.Tactics, r.Tactics}, {s.Modes, map[string]int{r.Mode: 1}}} {
		for k, n := range m.from {
			m.to[k] += n
		}
	}
}

func (s *Summary) String() string {
	return fmt.Sprintf("%d rounds of %d programs, modes %s: %d probes, %d armed %s, %d hits, %d records read, %d lost, %d toggles; "+
		"counted as by callgrind %d, by the kernel %d, likewise with our signal handlers %d, unsteady %d; left out %s; refused %s",
		s.Rounds, s.Programs, short(s.Modes), s.Probes, s.Armed, short(s.Tactics), s.Hits, s.Records, s.Lost, s.Toggles,
		s.ByCall, s.ByKernel, s.Seen, s.Unsteady, short(s.Left), short(s.Refused))
}

// ErrDifferent says that a round was wrong.
var ErrDifferent = errors.New("a run with probes differs")

// Run makes the programs ready and runs rounds of each in turn; each is told of every round.
// It ends at the first that is wrong, with ErrDifferent. Fix must have been called.
func Run(o *Options, each func(*Round)) (*Summary, error) {
	sum := &Summary{Left: map[string]int{}, Refused: map[string]int{}, Tactics: map[string]int{}, Modes: map[string]int{}}
	works, err := ByName(o.Programs)
	if err != nil {
		return sum, err
	}
	end := time.Now().Add(o.For)
	stages := make([]*Stage, len(works))
	seed, rng := o.Seed, rand.New(rand.NewPCG(o.Seed, 1))
	for n := 0; ; n++ {
		i := n % len(works)
		if o.For == 0 && n == o.Rounds*len(works) || o.For > 0 && time.Now().After(end) {
			return sum, nil
		}
		if stages[i] == nil {
			if stages[i], err = NewStage(works[i], o.Dir, o.Size); err != nil {
				return sum, err
			}
			sum.Programs++
			defer stages[i].Close()
		}
		r, err := stages[i].Round(seed, o.Probes)
		if err != nil {
			return sum, err
		}
		seed = rng.Uint64()
		sum.add(r)
		each(r)
		if !r.OK() {
			return sum, fmt.Errorf("%s: %w", r.Stage.Name, ErrDifferent)
		}
	}
}
