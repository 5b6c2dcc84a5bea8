package tracefs

import (
	"context"
	"errors"
	"os"
	"path"
	"sync/atomic"
	"syscall"
	"time"

	"bazil.org/fuse"
	"bazil.org/fuse/fs"
	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/tracefile"
)

// filesystem is what the kernel asks.
type filesystem struct {
	tree   *tracefile.Tree
	server *fs.Server
	busy   func(tid int) bool
	gone   atomic.Bool // nobody finds anything any more
}

// Root gives the top directory.
func (f *filesystem) Root() (fs.Node, error) {
	top, err := f.tree.Find("")
	if err != nil {
		return nil, err
	}
	return &node{f: f, mode: top.Mode}, nil
}

// node is a file or a directory by its path. Whether it is there is asked each time that it is looked up: names come and go at once.
type node struct {
	f    *filesystem
	path string
	mode os.FileMode // when it was looked up
	size uint64      // that stat(2) tells

	opened atomic.Int32 // how often it is open
}

var (
	owner = uint32(os.Geteuid())
	group = uint32(os.Getegid())
)

// What stat(2) tells of a file of text, as in sysfs: the length of a text is known when it is read. sendfile(2) and splice(2)
// take 0 for the end, and ask nobody; so they ask, and are refused: see handle.Read. Those of a stream in binary form, which get what they ask
// for, never come to its end. Its blocks are as many, or cp would take it for a file with holes.
const (
	textSize   = 4096
	streamSize = 1 << 62
)

// Attr tells what stat(2) does, and fstat(2) of a file that has gone.
func (n *node) Attr(_ context.Context, a *fuse.Attr) error {
	a.Valid, a.Mode, a.Uid, a.Gid, a.Nlink = 0, n.mode, owner, group, 1
	if n.mode.IsRegular() {
		a.Size, a.Blocks = n.size, n.size/512
	}
	return nil
}

// Setattr truncates a file. Its owner, mode and times stay.
func (n *node) Setattr(ctx context.Context, req *fuse.SetattrRequest, resp *fuse.SetattrResponse) error {
	if err := n.f.refused(req.Pid); err != nil {
		return err
	}
	f, err := n.f.tree.Find(n.path)
	switch {
	case err != nil:
		return failed(err)
	case req.Valid.Mode(), req.Valid.Uid(), req.Valid.Gid():
		return syscall.EPERM
	case req.Valid.Size():
		if err := f.Truncate(); err != nil {
			return failed(err)
		}
	}
	return n.Attr(ctx, &resp.Attr)
}

// Lookup finds a file of a directory. What the target's own threads may have to wait for, they do not find: names that come and go with
// changes of the target.
func (n *node) Lookup(ctx context.Context, req *fuse.LookupRequest, resp *fuse.LookupResponse) (fs.Node, error) {
	if err := n.f.refused(req.Pid); err != nil && (n.path != "" || n.f.gone.Load()) {
		return nil, err
	}
	child := &node{f: n.f, path: path.Join(n.path, req.Name)}
	f, err := n.f.tree.Find(child.path)
	if err != nil {
		return nil, failed(err)
	}
	child.mode, child.size, resp.EntryValid = f.Mode, textSize, 0
	if f.Paged() {
		child.size = streamSize
	}
	return child, child.Attr(ctx, &resp.Attr)
}

// ReadDirAll lists a directory.
func (n *node) ReadDirAll(context.Context) (out []fuse.Dirent, err error) {
	if n.f.gone.Load() {
		return nil, syscall.ENODEV
	}
	f, err := n.f.tree.Find(n.path)
	if err != nil {
		return nil, failed(err)
	}
	es, err := f.Entries()
	if err != nil {
		return nil, failed(err)
	}
	for _, e := range es {
		d := fuse.Dirent{Name: e.Name, Type: fuse.DT_File}
		if e.Dir {
			d.Type = fuse.DT_Dir
		}
		out = append(out, d)
	}
	return out, nil
}

// Create refuses a new file, Link, Symlink and Mknod other new names, Rename to change one, as tracefs does.
func (*node) Create(context.Context, *fuse.CreateRequest, *fuse.CreateResponse) (fs.Node, fs.Handle, error) {
	return nil, nil, syscall.EACCES
}

// Mkdir makes an instance. The target's own threads can not, as they can not Write.
func (n *node) Mkdir(_ context.Context, req *fuse.MkdirRequest) (fs.Node, error) {
	if err := n.f.refused(req.Pid); err != nil {
		return nil, err
	}
	child := &node{f: n.f, path: path.Join(n.path, req.Name)}
	if err := n.f.tree.Mkdir(child.path); err != nil {
		return nil, failed(err)
	}
	f, err := n.f.tree.Find(child.path)
	if err != nil {
		return nil, failed(err)
	}
	child.mode = f.Mode
	return child, nil
}

// closing is how often Remove looks whether a file that has been closed is, and closingPause between: the kernel tells of the last
// close(2) behind its end, and requests are answered by several goroutines.
const (
	closing      = 20
	closingPause = 2 * time.Millisecond
)

// Remove removes an instance. The target's own threads can not: they would have to stand still, and wait here.
func (n *node) Remove(_ context.Context, req *fuse.RemoveRequest) error {
	if !req.Dir {
		return syscall.EPERM
	}
	if err := n.f.refused(req.Pid); err != nil {
		return err
	}
	err := n.f.tree.Rmdir(path.Join(n.path, req.Name))
	for i := 0; i < closing && errors.Is(err, unix.EBUSY); i++ {
		time.Sleep(closingPause)
		err = n.f.tree.Rmdir(path.Join(n.path, req.Name))
	}
	if err != nil {
		return failed(err)
	}
	return nil
}

// Rename: see Create.
func (*node) Rename(context.Context, *fuse.RenameRequest, fs.Node) error { return syscall.EPERM }

// Link: see Create.
func (*node) Link(context.Context, *fuse.LinkRequest, fs.Node) (fs.Node, error) {
	return nil, syscall.EPERM
}

// Symlink: see Create.
func (*node) Symlink(context.Context, *fuse.SymlinkRequest) (fs.Node, error) {
	return nil, syscall.EPERM
}

// Mknod: see Create.
func (*node) Mknod(context.Context, *fuse.MknodRequest) (fs.Node, error) { return nil, syscall.EPERM }

// Open opens a file or a directory, but not for the target's own threads: see handle.Read.
func (n *node) Open(_ context.Context, req *fuse.OpenRequest, resp *fuse.OpenResponse) (fs.Handle, error) {
	if err := n.f.refused(req.Pid); err != nil {
		return nil, err
	}
	if req.Dir {
		return n, nil
	}
	f, err := n.f.tree.Find(n.path)
	if err != nil {
		return nil, failed(err)
	}
	open, err := f.Open()
	if err != nil {
		return nil, failed(err)
	}
	n.opened.Add(1)
	h := &handle{f: n.f, n: n, h: open, closed: make(chan struct{})}
	resp.Flags |= fuse.OpenDirectIO
	if h.h.Streams() {
		resp.Flags |= fuse.OpenNonSeekable
	}
	return h, nil
}

// refused says why a thread gets no answer: the files are gone, or it is one of the target's own.
func (f *filesystem) refused(tid uint32) error {
	switch {
	case f.gone.Load():
		return syscall.ENODEV
	case f.busy != nil && f.busy(int(tid)):
		return syscall.EDEADLK
	}
	return nil
}
