package soak

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// Options say what Run does.
type Options struct {
	Dir      string        // where it works
	For      time.Duration // 0: as Rounds says
	Rounds   int           // of each program
	Programs []string      // nil: all
	Kprobe   string        // the command, for visits; "": there are none
	Seed     uint64        // of the first round
	Probes   int           // of a round
	Size     int           // of the input; 1 is small
}

// Summary adds rounds up.
type Summary struct {
	Rounds, Programs, Probes, Armed, ByCall, ByKernel, Seen, Unsteady, Toggles int
	Hits, Records, Lost                                                        uint64
	Left, Refused, Tactics, Modes                                              map[string]int
	Visits, Killed                                                             int
	Sets                                                                       map[string]map[string]int // of a program: visits that armed each set
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

// addVisits adds a round of visits.
func (s *Summary) addVisits(v *Visits) {
	s.Rounds++
	s.Visits += v.Visits
	s.Killed += v.Killed
	s.Armed += v.Armed
	s.Hits += v.Hits
	if s.Sets[v.Program] == nil {
		s.Sets[v.Program] = map[string]int{}
	}
	for k, n := range v.Sets {
		s.Sets[v.Program][k] += n
	}
}

// enoughVisits is how many visits a program must have had before it counts that none has armed anything.
const enoughVisits = 8

// visited says which programs no visit could probe.
func (s *Summary) visited() error {
	var out []error
	for name, sets := range s.Sets {
		if len(sets) == 0 && s.Visits >= enoughVisits*len(s.Sets) {
			out = append(out, fmt.Errorf("no visit could probe %s", name))
		}
	}
	return errors.Join(out...)
}

func (s *Summary) String() string {
	return fmt.Sprintf("%d visits by kprobe, %d of them killed; ", s.Visits, s.Killed) + s.counts()
}

func (s *Summary) counts() string {
	return fmt.Sprintf("%d rounds of %d programs, modes %s: %d probes, %d armed %s, %d hits, %d records read, %d lost, %d toggles; "+
		"counted as by callgrind %d, by the kernel %d, likewise with our signal handlers %d, unsteady %d; left out %s; refused %s",
		s.Rounds, s.Programs, short(s.Modes), s.Probes, s.Armed, short(s.Tactics), s.Hits, s.Records, s.Lost, s.Toggles,
		s.ByCall, s.ByKernel, s.Seen, s.Unsteady, short(s.Left), short(s.Refused))
}

// ErrDifferent says that a round was wrong.
var ErrDifferent = errors.New("a run with probes differs")

// Run makes the programs ready and runs rounds of each in turn, of Works and, if Options name the
// command, of Programs for visits; each is told of every round. It ends at the first that is wrong,
// with ErrDifferent. Fix must have been called.
func Run(o *Options, each func(fmt.Stringer)) (*Summary, error) {
	sum := &Summary{Left: map[string]int{}, Refused: map[string]int{}, Tactics: map[string]int{}, Modes: map[string]int{}, Sets: map[string]map[string]int{}}
	subjects, err := o.subjects()
	if err != nil {
		return sum, err
	}
	defer func() {
		for _, s := range subjects {
			s.close()
		}
	}()
	end := time.Now().Add(o.For)
	seed, rng := o.Seed, rand.New(rand.NewPCG(o.Seed, 1))
	for n := 0; ; n++ {
		if o.For == 0 && n == o.Rounds*len(subjects) || o.For > 0 && time.Now().After(end) {
			return sum, sum.visited()
		}
		if err := subjects[n%len(subjects)].round(seed, sum, each); err != nil {
			return sum, err
		}
		seed = rng.Uint64()
	}
}

// subject is a program of which rounds are run.
type subject interface {
	round(seed uint64, sum *Summary, each func(fmt.Stringer)) error
	close()
}

// subjects are the programs that the options ask for.
func (o *Options) subjects() ([]subject, error) {
	var out []subject
	named := map[string]bool{}
	add := func(name string, s subject) {
		if len(o.Programs) == 0 || slices.Contains(o.Programs, name) {
			out = append(out, s)
			named[name] = true
		}
	}
	for _, w := range Works() {
		add(w.Name, &worked{o: o, w: w})
	}
	if o.Kprobe != "" {
		for _, p := range Programs() {
			add(p.Name, &visited{o: o, p: p})
		}
	}
	for _, name := range o.Programs {
		if !named[name] {
			return nil, fmt.Errorf("no program is called %q", name)
		}
	}
	return out, nil
}

// worked is a Work whose rounds count.
type worked struct {
	o     *Options
	w     *Work
	stage *Stage
}

func (x *worked) round(seed uint64, sum *Summary, each func(fmt.Stringer)) (err error) {
	if x.stage == nil {
		if x.stage, err = NewStage(x.w, x.o.Dir, x.o.Size); err != nil {
			return err
		}
		sum.Programs++
	}
	r, err := x.stage.Round(seed, x.o.Probes)
	if err != nil {
		return err
	}
	sum.add(r)
	each(r)
	if !r.OK() {
		return fmt.Errorf("%s: %w", x.w.Name, ErrDifferent)
	}
	return nil
}

func (x *worked) close() {
	if x.stage != nil {
		x.stage.Close()
	}
}

// visited is a Program to which kprobe comes.
type visited struct {
	o     *Options
	p     *Program
	stage *VisitStage
}

func (x *visited) round(seed uint64, sum *Summary, each func(fmt.Stringer)) (err error) {
	if x.stage == nil {
		if x.stage, err = NewVisitStage(x.p, x.o.Kprobe, x.o.Dir, x.o.Size); err != nil {
			return err
		}
		sum.Programs++
	}
	v, err := x.stage.Round(seed)
	if err != nil {
		return err
	}
	sum.addVisits(v)
	each(v)
	if v.Wrong != nil {
		return fmt.Errorf("%s: %w", x.p.Name, ErrDifferent)
	}
	return nil
}

func (x *visited) close() {
	if x.stage != nil {
		x.stage.Close()
	}
}
