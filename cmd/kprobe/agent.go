package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/agentconfig"
)

const agentHelp = `Probe processes as a configuration file says, until it is ended: as a service. Counts and
histograms are metrics for Prometheus, calls are spans for a collector of OpenTelemetry, and each
change is a line of JSON. A target is one process, or all processes of a program. A process that
is not there is waited for, one that ends is waited for again. The file is read anew when it changes and at SIGHUP; one with a mistake is refused as a
whole, and all stays as it was. docs/kprobe-agent.md has all keys, and an example.`

func newAgent(con *console) *cobra.Command {
	a := &agentRun{con: con}
	c := &cobra.Command{
		Use:   "agent -c FILE",
		Short: "probe processes as a configuration file says, as a service",
		Long:  agentHelp,
		Args:  noArgs,
		RunE:  func(*cobra.Command, []string) error { return a.run() },
	}
	fl := c.Flags()
	fl.StringVarP(&a.path, "config", "c", "", "the configuration file")
	fl.BoolVar(&a.check, "check", false, "only say what is wrong with the file")
	return c
}

// run is the verb.
func (a *agentRun) run() error {
	if a.path == "" {
		return usagef("give the configuration file: kprobe agent -c probes.yaml")
	}
	config, err := a.read()
	switch {
	case err != nil:
		return usageError{err}
	case a.check:
		return nil
	}
	a.otlp = config.OTLP
	close, err := a.openAudit(config.AuditLog)
	if err != nil {
		return err
	}
	defer close()
	if config.Listen != "" {
		w, err := openWeb("listen "+config.Listen, config.Listen, a.token(config.TokenFile))
		if err != nil {
			return err
		}
		defer w.listener.Close()
		a.say("listening", "address", w.listener.Addr().String())
		defer w.serve(map[string]page{"/metrics": a.answer}, map[string]page{"/healthz": healthy, "/readyz": a.ready})()
	}
	ends, hup := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(ends, slices.DeleteFunc(endSignals(), func(s os.Signal) bool { return s == unix.SIGHUP })...)
	signal.Notify(hup, unix.SIGHUP)
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE) // who reads the audit lines may end
	a.apply(config, "start")
	why := a.follow(ends, hup)
	a.apply(&agentconfig.Config{}, why)
	a.ending.Wait()
	a.say("ended", "why", why)
	return nil
}

// configEvery is the time between two looks at whether the file has changed.
const configEvery = time.Second

// follow follows the file until a signal ends the agent, and gives the reason.
func (a *agentRun) follow(ends, hup <-chan os.Signal) (why string) {
	look := time.NewTicker(configEvery)
	defer look.Stop()
	for {
		select {
		case s := <-ends:
			return "signal: " + s.String()
		case <-hup:
			a.reload("SIGHUP")
		case <-look.C:
			if now, err := fileStateOf(a.path); err == nil && now != a.seen {
				a.reload("the file has changed")
			}
		}
	}
}

func fileStateOf(path string) (fileState, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fileState{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return fileState{st.Dev, st.Ino, st.Size, int64(st.Mtim.Sec), int64(st.Mtim.Nsec)}, nil
}

// read reads the file. The error has all that is wrong with it.
func (a *agentRun) read() (*agentconfig.Config, error) {
	now, err := fileStateOf(a.path)
	if err != nil {
		return nil, err
	}
	a.seen = now // before it is read: a change meanwhile is seen by the next look
	if now.size > agentconfig.MaxSize {
		return nil, fmt.Errorf("%s: the file has %d bytes: at most %d are taken", a.path, now.size, agentconfig.MaxSize)
	}
	text, err := os.ReadFile(a.path)
	if err != nil {
		return nil, err
	}
	c, err := agentconfig.Parse(text)
	if many, ok := joined(err); ok {
		for i := range many {
			many[i] = fmt.Errorf("%s: %w", a.path, many[i])
		}
		return nil, errors.Join(many...)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.path, err)
	}
	return c, nil
}

// reload takes the file anew, or leaves all as it was.
func (a *agentRun) reload(why string) {
	c, err := a.read()
	if err == nil {
		err = a.fixed(c)
	}
	a.mu.Lock()
	if a.refused = err != nil; err != nil {
		a.rejected++
	} else {
		a.accepted++
	}
	a.mu.Unlock()
	if err != nil {
		a.audit.Error("reload rejected", "why", why, "file", a.path, "error", err.Error())
		return
	}
	a.say("reload accepted", "why", why, "file", a.path)
	a.apply(c, "reload: "+why)
}

// fixed refuses a change of what the agent has been started with.
func (a *agentRun) fixed(c *agentconfig.Config) error {
	for _, one := range []struct{ key, was, is string }{
		{"listen", a.config.Listen, c.Listen},
		{"token_file", a.config.TokenFile, c.TokenFile},
		{"audit_log", a.config.AuditLog, c.AuditLog},
		{"otlp", fmt.Sprintf("%q", a.config.OTLP), fmt.Sprintf("%q", c.OTLP)},
	} {
		if one.was != one.is {
			return fmt.Errorf("%s: %s has changed, which takes a new start of the agent: leave it as it was, or start anew", a.path, one.key)
		}
	}
	return nil
}

// apply has targets come, change and go. What is the same is not touched.
func (a *agentRun) apply(c *agentconfig.Config, why string) {
	old := map[string]*agentTarget{}
	for _, t := range a.targets {
		old[t.is.Name] = t
	}
	kept := map[*agentTarget]bool{}
	var next []*agentTarget
	for _, is := range c.Targets {
		t := old[is.Name]
		if t == nil || !t.is.SameProcesses(is) {
			t = newAgentTarget(a, is)
		}
		kept[t] = true
		next = append(next, t)
	}
	var gone sync.WaitGroup
	for _, t := range a.targets {
		if !kept[t] {
			gone.Go(func() { t.end(why) })
		}
	}
	gone.Wait() // a new target may be of the same process
	a.mu.Lock()
	a.config, a.targets = c, next
	a.mu.Unlock()
	for i, t := range next {
		t.change(c.Targets[i].Probes, why)
	}
	a.mu.Lock()
	a.applied = true
	a.mu.Unlock()
}

// openAudit opens what audit lines go to.
func (a *agentRun) openAudit(path string) (close func(), err error) {
	to := a.con.stderr
	if path != "" {
		if to, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640); err != nil {
			return nil, err
		}
	}
	a.audit = slog.New(slog.NewJSONHandler(to, nil)).With("agent", os.Getpid(), "uid", os.Getuid())
	return func() {
		if path != "" {
			_ = to.Close() // each line was written at once
		}
	}, nil
}

// say writes an audit line.
func (a *agentRun) say(what string, args ...any) { a.audit.Info(what, args...) }
