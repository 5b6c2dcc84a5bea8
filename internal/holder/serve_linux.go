package holder

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/procfs"
)

// Session is a request that is being served.
type Session struct {
	*Request
	// Ended is closed when the client asks for the end, or has ended itself.
	Ended <-chan struct{}
	// Gone is closed when the client has ended.
	Gone <-chan struct{}

	conn *net.UnixConn
}

// Host runs requests.
type Host interface {
	// Serve runs the command line of a session and gives its exit status; ok is false if the target is given up at present, so
	// that the client has to ask again. It is called by a goroutine for each session.
	Serve(s *Session) (status int, ok bool)
	// Target is the file that a client must show open to be written, but for the first one: the memory of the target. It waits until the
	// target is there; ok is false if there will be none.
	Target() (mem string, ok bool)
	// Done is closed when nothing is served any more.
	Done() <-chan struct{}
}

// Serve is a holder: it serves the client that has started it, and those who connect, until the host is done.
func Serve(h Host) error {
	f := os.NewFile(connFD, "client")
	c, err := net.FileConn(f)
	err = errors.Join(err, f.Close())
	first, ok := c.(*net.UnixConn)
	if err != nil || !ok {
		return errors.Join(errors.New("no client has started it"), err)
	}
	l, err := listen()
	if err != nil {
		return errors.Join(err, json.NewEncoder(first).Encode(reply{Refuse: err.Error()}), first.Close())
	}
	s := &server{host: h}
	s.idle.L = &s.mu
	unserved := make(chan struct{})
	go func() {
		if !s.serve(first, true) {
			close(unserved)
		}
	}()
	go func() {
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			go s.serve(conn, false)
		}
	}()
	select {
	case <-h.Done():
	case <-unserved: // who has started it asks for nothing
	}
	s.wait()
	return nil // the socket stays until the process has ended: who connects is told that it ends
}

// server serves the clients of a host.
type server struct {
	host Host

	mu   sync.Mutex
	idle sync.Cond // nobody is served
	n    int       // who is served, and has not been told how it ended
}

func (s *server) count(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n += n; s.n == 0 {
		s.idle.Broadcast()
	}
}

// wait waits until all have been told how their command lines ended.
func (s *server) wait() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.n > 0 {
		s.idle.Wait()
	}
}

// listen makes the socket. It is there before the target is held: who finds the holder finds the socket.
func listen() (*net.UnixListener, error) {
	me := procfs.NewHolder(os.Getpid())
	return net.ListenUnix("unix", address(me.PID, me.Start))
}

// serve serves a client, and says whether it has come to that.
func (s *server) serve(conn *net.UnixConn, first bool) bool {
	defer conn.Close()
	who, err := peer(conn)
	if err == nil && !first {
		err = admitted(who)
	}
	if err != nil {
		_ = json.NewEncoder(conn).Encode(reply{Refuse: err.Error()})
		return false
	}
	r, dec, err := receive(conn)
	if err != nil {
		return false
	}
	defer r.Files.close()
	r.PID = int(who.Pid)
	enc := json.NewEncoder(conn)
	mem, there := "", true
	if !first {
		mem, there = s.host.Target()
	}
	if !there {
		_ = enc.Encode(reply{Ending: true})
		return false
	}
	if err := r.accepted(mem); err != nil {
		_ = enc.Encode(reply{Refuse: err.Error()})
		return false
	}
	if enc.Encode(reply{Taken: true}) != nil {
		return false
	}
	s.count(1)
	defer s.count(-1)
	ended, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		for asked := false; ; {
			var m ask
			err := dec.Decode(&m)
			if (err != nil || m.End) && !asked {
				asked = true
				close(ended)
			}
			if err != nil {
				return
			}
		}
	}()
	status, ok := s.host.Serve(&Session{Request: r, Ended: ended, Gone: gone, conn: conn})
	r.Files.close()
	if !ok {
		_ = enc.Encode(reply{Ending: true})
		return true
	}
	_ = enc.Encode(reply{Status: &status}) // a client that has ended needs no status
	return true
}

// Begun tells the client that the program that was started for its command runs.
func (s *Session) Begun() { _ = json.NewEncoder(s.conn).Encode(reply{Begun: true}) }

// Out tells the client that nothing of its command's is in the target any more.
func (s *Session) Out() { _ = json.NewEncoder(s.conn).Encode(reply{Out: true}) }

// admitted says why a process is not served.
func admitted(who *unix.Ucred) error {
	if int(who.Uid) != os.Geteuid() {
		return fmt.Errorf("it serves user %d, and you are user %d", os.Geteuid(), who.Uid)
	}
	return nil
}

// accepted says why a request is not taken. mem is what the client must have opened; "": nothing.
func (r *Request) accepted(mem string) error {
	if r.Protocol != protocol {
		return fmt.Errorf("it is another version of kprobe (protocol %d, not %d): end that one, or take its version", protocol, r.Protocol)
	}
	if mem == "" {
		return nil
	}
	var theirs, ours unix.Stat_t
	flags, err := unix.FcntlInt(r.Files.Proof.Fd(), unix.F_GETFL, 0)
	if err == nil {
		err = errors.Join(unix.Fstat(int(r.Files.Proof.Fd()), &theirs), unix.Stat(mem, &ours))
	}
	if err != nil || theirs.Dev != ours.Dev || theirs.Ino != ours.Ino || flags&unix.O_ACCMODE != unix.O_RDWR {
		return errors.Join(fmt.Errorf("you have not shown that you may trace it: its memory, %s, is another file where you are", mem), err)
	}
	return nil
}
