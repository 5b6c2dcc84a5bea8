package holder

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// protocol is the version of what is sent. A holder refuses another.
const protocol = 3

// Request is what a client asks for: that the holder runs a command line, with files that the client has opened.
type Request struct {
	Protocol int
	PID      int      `json:"-"` // of the client, by the kernel: the holder knows it
	Args     []string // without the name of the command
	Program  int      // the process that was started for it, and has not run yet; 0: none was
	HTTP     *HTTP    `json:",omitempty"` // nil: it answers no requests
	Files    Files    `json:"-"`
}

// HTTP says whose requests a command line answers on the listener that its client has opened: Files.Listener.
type HTTP struct {
	Token string   // that a request must bear
	Hosts []string // names that requests may be addressed to, beside those of loopback
}

// Files go with a request. The holder closes its own when the request has been served.
type Files struct {
	Out, Err  *os.File
	Dir, Root *os.File // what relative and absolute paths begin at (O_PATH)
	Proof     *os.File // of the right to trace the target: its memory (/proc/PID/mem), open to be written
	Listener  *os.File // a socket that listens; nil: there is none
}

// always is the number of files that every request has.
const always = 5

func (f *Files) all() []**os.File {
	return []**os.File{&f.Out, &f.Err, &f.Dir, &f.Root, &f.Proof, &f.Listener}
}

// close closes them.
func (f *Files) close() {
	for _, one := range f.all() {
		if *one != nil {
			_ = (*one).Close() // what was written to them has been checked
		}
	}
}

// reply is what a holder tells a client.
type reply struct {
	Taken  bool   `json:",omitempty"` // the request is served
	Begun  bool   `json:",omitempty"` // the program that was started for the command runs
	Out    bool   `json:",omitempty"` // nothing of the client's is in the target any more
	Status *int   `json:",omitempty"` // the command has ended
	Refuse string `json:",omitempty"` // why the request is not taken
	Ending bool   `json:",omitempty"` // the holder is about to end: ask again
}

// ask is what a client tells after its request.
type ask struct {
	End bool `json:",omitempty"` // the command is to end
}

// send sends a request with its files.
func (r *Request) send(conn *net.UnixConn) error {
	r.Protocol = protocol
	var fds []int
	for _, f := range r.Files.all() {
		if *f == nil && f == &r.Files.Listener {
			continue
		}
		raw, err := (*f).SyscallConn() // Fd would change how the file is read and written, for others too
		if err == nil {
			err = raw.Control(func(fd uintptr) { fds = append(fds, int(fd)) })
		}
		if err != nil {
			return err
		}
	}
	// The files come with the first byte.
	if _, _, err := conn.WriteMsgUnix([]byte{protocol}, unix.UnixRights(fds...), nil); err != nil {
		return err
	}
	return json.NewEncoder(conn).Encode(r)
}

// receive receives a request with its files. dec reads what comes behind it.
func receive(conn *net.UnixConn) (r *Request, dec *json.Decoder, err error) {
	r = new(Request)
	oob := make([]byte, unix.CmsgSpace(4*len(r.Files.all())))
	n, oobn, _, _, err := conn.ReadMsgUnix(make([]byte, 1), oob)
	if err != nil {
		return nil, nil, err
	}
	fds, err := rights(oob[:oobn])
	for i, fd := range fds {
		if to := r.Files.all(); i < len(to) {
			*to[i] = os.NewFile(uintptr(fd), fmt.Sprintf("file %d of a request", i))
		}
	}
	if err == nil && (n != 1 || len(fds) < always) {
		err = errors.New("no request begins so")
	}
	if err == nil {
		dec = json.NewDecoder(conn)
		err = dec.Decode(r)
	}
	if err == nil && (r.HTTP == nil) != (r.Files.Listener == nil) {
		err = errors.New("a listener, and nobody is said to be answered, or the other way round")
	}
	if err != nil {
		r.Files.close()
		return nil, nil, err
	}
	return r, dec, nil
}

// rights are the files of a message, which are closed on exec.
func rights(oob []byte) (fds []int, err error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	for i := range msgs {
		more, bad := unix.ParseUnixRights(&msgs[i])
		err = errors.Join(err, bad)
		fds = append(fds, more...)
	}
	for _, fd := range fds {
		unix.CloseOnExec(fd)
	}
	return fds, err
}
