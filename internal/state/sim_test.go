package state

import (
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// simFS is a file system without a kernel, for tests that crash at each step and
// have operators do what they like: names lead to nodes, as on any Unix.
type simFS struct {
	root  *simNode
	reuse bool // as ext4: a new file takes the inode number of one that was removed
	free  []uint64
	last  uint64
	tick  int64
}

// simNode is an inode. The content of a file is in words, so that it can be
// mapped.
type simNode struct {
	inode   uint64
	changed int64
	sub     map[string]*simNode // nil for a file
	words   []int64
	size    int
	lock    *simProc
}

// simProc is a process: it can be killed at one of its steps, and each of its
// steps can fail.
type simProc struct {
	pid     int
	steps   int
	crashAt int // 0: never
	failAt  int // the first of failing steps; 0: none
	fails   int // how many
	failed  int // how many did
	dead    bool
}

type simCrash struct{ *simProc }

func newSimFS(reuse bool, names ...string) *simFS {
	f := &simFS{reuse: reuse}
	f.root = f.node(true)
	for _, name := range names {
		f.root.sub[name] = f.node(true)
	}
	return f
}

func (f *simFS) node(dir bool) *simNode {
	n := &simNode{}
	if f.reuse && len(f.free) > 0 {
		n.inode, f.free = f.free[len(f.free)-1], f.free[:len(f.free)-1]
	} else {
		f.last++
		n.inode = f.last
	}
	if dir {
		n.sub = map[string]*simNode{}
	}
	f.touch(n)
	return n
}

func (f *simFS) touch(n *simNode) {
	f.tick++
	n.changed = time.Now().UnixNano() + f.tick*1000
}

// at walks a path, without changing anything; nil where it leads nowhere.
func (f *simFS) at(path string) *simNode {
	n := f.root
	for _, name := range strings.FieldsFunc(path, func(r rune) bool { return r == '/' }) {
		if n == nil || n.sub == nil {
			return nil
		}
		n = n.sub[name]
	}
	return n
}

// unlink takes a name away.
func (f *simFS) unlink(dir *simNode, name string) {
	n := dir.sub[name]
	if n == nil {
		return
	}
	delete(dir.sub, name)
	f.touch(n)
	if n.sub == nil && !f.linked(f.root, n) {
		f.free = append(f.free, n.inode)
	}
}

func (f *simFS) linked(under, n *simNode) bool {
	for _, sub := range under.sub {
		if sub == n || sub.sub != nil && f.linked(sub, n) {
			return true
		}
	}
	return false
}

// link gives a node one more name, in place of what had it.
func (f *simFS) link(dir *simNode, name string, n *simNode) {
	if dir.sub[name] != n {
		f.unlink(dir, name)
	}
	dir.sub[name] = n
	if n.sub == nil {
		f.touch(n) // link(2) and rename(2) change the ctime of a file
	}
}

func (n *simNode) content() []byte {
	if n.size == 0 {
		return nil
	}
	return slices.Clone(unsafe.Slice((*byte)(unsafe.Pointer(&n.words[0])), len(n.words)*8)[:n.size])
}

// write overwrites a file in place. Whoever has mapped it sees that.
func (f *simFS) write(n *simNode, content []byte) {
	if need := (len(content) + 7) / 8; need != len(n.words) {
		n.words = make([]int64, need)
	}
	n.size = len(content)
	if n.size > 0 {
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&n.words[0])), len(n.words)*8), content)
	}
	f.touch(n)
}

// step is where the process can be killed, and what it does can fail.
func (p *simProc) step() error {
	if p.dead {
		panic("a dead process goes on")
	}
	p.steps++
	if p.steps == p.crashAt {
		panic(simCrash{p})
	}
	if p.failAt > 0 && p.steps >= p.failAt && p.fails > 0 {
		p.fails--
		p.failed++
		return unix.ENOSPC
	}
	return nil
}

// kill ends the process: its locks are gone, its memory-mapped stores stay.
func (p *simProc) kill(systems ...*simFS) {
	p.dead = true
	for _, f := range systems {
		f.release(f.root, p)
	}
}

func (f *simFS) release(n *simNode, p *simProc) {
	if n.lock == p {
		n.lock = nil
	}
	for _, sub := range n.sub {
		f.release(sub, p)
	}
}

// simDir is an open directory of a process.
type simDir struct {
	fs   *simFS
	proc *simProc
	node *simNode
	path string
	held *simNode // the lock file; nil: not locked
}

var _ Dir = (*simDir)(nil)

func (f *simFS) open(p *simProc, path string) *simDir {
	if f.at(path) == nil {
		f.root.sub[strings.Trim(path, "/")] = f.node(true)
	}
	return &simDir{fs: f, proc: p, node: f.at(path), path: path}
}

func (d *simDir) Path() string { return d.path }

func (d *simDir) fail(name, problem string, err error) error {
	return fileError(d.path+"/"+name, problem, err)
}

func (d *simDir) Lock(time.Time) error {
	if err := d.proc.step(); err != nil {
		return d.fail(lockName, "cannot create it", err)
	}
	f := d.node.sub[lockName]
	if f == nil {
		f = d.fs.node(false)
		d.node.sub[lockName] = f
	}
	for _, n := range []*simNode{f, d.node} {
		if n.lock != nil {
			return &LockedError{Holder: Holder{PID: n.lock.pid}, Path: d.path + "/" + lockName}
		}
	}
	f.lock, d.node.lock, d.held = d.proc, d.proc, f
	return nil
}

func (d *simDir) Holder() (*Holder, error) {
	for _, n := range []*simNode{d.node.sub[lockName], d.node} {
		if n != nil && n.lock != nil {
			return &Holder{PID: n.lock.pid}, nil
		}
	}
	return nil, nil
}

func (d *simDir) Read(name string) ([]byte, FileID, error) {
	if err := d.proc.step(); err != nil {
		return nil, FileID{}, d.fail(name, "cannot read it", err)
	}
	n := d.node.sub[name]
	if n == nil {
		return nil, FileID{}, d.fail(name, "cannot look at it", fs.ErrNotExist)
	}
	return n.content(), n.id(), nil
}

func (n *simNode) id() FileID { return FileID{Device: 1, Inode: n.inode, ChangedNS: n.changed} }

func (d *simDir) Replace(name string, content func(FileID) []byte) error {
	var n *simNode
	for _, step := range []func(){
		func() { d.fs.unlink(d.node, name+newSuffix) },
		func() {
			n = d.fs.node(false)
			d.node.sub[name+newSuffix] = n
		},
		func() { d.fs.write(n, content(n.id())) },
		func() {
			delete(d.node.sub, name+newSuffix)
			d.fs.link(d.node, name, n)
		},
		func() {}, // the sync of the directory
	} {
		if err := d.proc.step(); err != nil {
			d.fs.unlink(d.node, name+newSuffix)
			return d.fail(name, "cannot write it", err)
		}
		if d.fs.at(d.path) != d.node && !d.fs.linked(d.fs.root, d.node) {
			return d.fail(name, "cannot create it", fs.ErrNotExist) // in a directory that was removed
		}
		step()
	}
	return nil
}

func (d *simDir) Map(name string, writable bool) (*Mapping, error) {
	if err := d.proc.step(); err != nil {
		return nil, d.fail(name, "cannot map it", err)
	}
	n := d.node.sub[name]
	if n == nil {
		return nil, d.fail(name, "cannot look at it", fs.ErrNotExist)
	}
	if n.size < 8 || n.size%8 != 0 {
		return nil, damagedMarks(name, "its size")
	}
	return &Mapping{Words: n.words, ID: n.id(), Unmap: func() error { return nil }}, nil
}

func (d *simDir) Identify(name string) (FileID, error) {
	if err := d.proc.step(); err != nil {
		return FileID{}, d.fail(name, "cannot look at it", err)
	}
	n := d.node.sub[name]
	if n == nil {
		return FileID{}, d.fail(name, "cannot look at it", fs.ErrNotExist)
	}
	return n.id(), nil
}

func (d *simDir) Current() error {
	if d.fs.at(d.path) != d.node || d.held != nil && d.node.sub[lockName] != d.held {
		return &FileError{Path: d.path, Problem: "was removed or replaced while this process uses it"}
	}
	return nil
}

func (d *simDir) Sub(name string, create bool) (Dir, error) {
	if err := d.proc.step(); err != nil {
		return nil, d.fail(name, "cannot open the directory", err)
	}
	n := d.node.sub[name]
	if n == nil && (!create || d.fs.at(d.path) != d.node) {
		return nil, d.fail(name, "cannot open the directory", fs.ErrNotExist)
	}
	if n == nil {
		n = d.fs.node(true)
		d.node.sub[name] = n
	}
	return &simDir{fs: d.fs, proc: d.proc, node: n, path: d.path + "/" + name}, nil
}

func (d *simDir) Subs() ([]string, error) {
	if err := d.proc.step(); err != nil {
		return nil, err
	}
	var names []string
	for _, name := range slices.Sorted(maps.Keys(d.node.sub)) {
		if d.node.sub[name].sub != nil {
			names = append(names, name)
		}
	}
	return names, nil
}

func (d *simDir) RemoveSub(name string) error {
	if n := d.node.sub[name]; n != nil {
		for _, file := range slices.Sorted(maps.Keys(n.sub)) {
			if err := d.proc.step(); err != nil {
				return d.fail(name, "cannot remove the directory", err)
			}
			d.fs.unlink(n, file)
		}
		delete(d.node.sub, name)
	}
	return nil
}

func (d *simDir) Close() error {
	if d.held != nil {
		for _, n := range []*simNode{d.held, d.node} {
			if n.lock == d.proc {
				n.lock = nil
			}
		}
		d.held = nil
	}
	return nil
}

// show lists what there is, for the log of a run that failed.
func (f *simFS) show(n *simNode, indent string) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(n.sub)) {
		sub := n.sub[name]
		fmt.Fprintf(&b, "%s%s inode %d\n", indent, name, sub.inode)
		if sub.sub != nil {
			b.WriteString(f.show(sub, indent+"  "))
		}
	}
	return b.String()
}
