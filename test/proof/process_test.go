package proof

import (
	"errors"
	"io/fs"
	"slices"
	"time"

	"github.com/kazahana/kazahana/internal/state"
)

// process is one life of a daemon, as the file systems see it.
type process struct {
	w    *world
	open []*dir

	gone  bool // nothing of it runs any more
	dying bool // it was killed, and hangs in a frozen file system: its locks stay
	quiet bool // no kill comes now: the code that runs is not the main goroutine's
	// lockless: folders of the live directory are used without their lock.
	lockless bool

	marks []int64 // the mapping that was made last
}

// killed ends a process wherever it is: the code of a process that is gone does
// nothing more.
type killed struct{ p *process }

// check stops code that runs on behalf of a process that is gone.
func (p *process) check() {
	if p.gone || p.dying {
		panic(killed{p})
	}
}

// mayDie is a moment at which kill -9 may come.
func (p *process) mayDie() {
	p.check()
	if !p.quiet && p.w.rnd.IntN(p.w.deadliness) == 0 {
		p.w.count("killed in the middle of a write")
		p.die()
		panic(killed{p})
	}
}

// die is kill -9. Memory stays as it is.
func (p *process) die() {
	for _, d := range p.open {
		if d.fs.frozen && slices.ContainsFunc(d.fs.stuck, func(s stuckWrite) bool { return s.by == p }) {
			p.dying = true
			return
		}
	}
	p.end()
}

// end drops the locks.
func (p *process) end() {
	p.gone, p.dying = true, false
	for _, d := range p.open {
		d.unlock()
	}
	p.open = nil
}

// dir is a directory that a process has open.
type dir struct {
	p    *process
	fs   *fileSystem
	node *node
	up   *dir // nil: at the root
	name string
	file *node // the lock file, where it is locked
}

var _ state.Dir = (*dir)(nil)

var (
	errFull   = errors.New("no space left")
	errStalls = errors.New("the disk does not answer")
	errBroken = errors.New("input/output error")
)

const lockName = "lock"

// openDir opens a directory at the root of the file system.
func openDir(p *process, f *fileSystem, name string) *dir {
	n := f.root.entries[name]
	if n == nil {
		n = f.newDirectory()
		f.put(f.root, name, n)
	}
	d := &dir{p: p, fs: f, node: n, name: name}
	p.open = append(p.open, d)
	return d
}

func (d *dir) Path() string {
	if d.up == nil {
		return d.name
	}
	return d.up.name + "/" + d.name
}

// there is what the directory's path leads to now.
func (d *dir) there() *node {
	if d.up == nil {
		return d.fs.root.entries[d.name]
	}
	if above := d.fs.root.entries[d.up.name]; above != nil {
		return above.entries[d.name]
	}
	return nil
}

// Lock locks the lock file and the directory, as the real one does: an operator
// may remove the file.
func (d *dir) Lock(time.Time) error {
	d.p.check()
	if d.up != nil && (d.p.lockless || d.p.w.without(identityLocked)) {
		return nil
	}
	file := d.node.entries[lockName]
	if file == nil {
		file = d.fs.newFile([]byte("holder"))
		d.fs.put(d.node, lockName, file)
	}
	for _, n := range []*node{file, d.node} {
		if by := n.lock; by != nil {
			return &state.LockedError{Holder: state.Holder{PID: 1, Dying: by.p.dying}, Path: d.Path()}
		}
	}
	file.lock, d.node.lock, d.file = d, d, file
	return nil
}

func (d *dir) unlock() {
	if d.file != nil {
		d.file.lock, d.node.lock, d.file = nil, nil, nil
	}
}

func (d *dir) Holder() (*state.Holder, error) { panic("the proof does not inspect") }

func (d *dir) Read(name string) ([]byte, state.FileID, error) {
	n, err := d.find(name)
	if err != nil {
		return nil, state.FileID{}, err
	}
	return slices.Clone(n.bytes()), d.id(name, n), nil
}

func (d *dir) find(name string) (*node, error) {
	d.p.check()
	n := d.node.entries[name]
	if n == nil {
		return nil, &state.FileError{Path: d.Path() + "/" + name, Problem: "cannot look at it", Err: fs.ErrNotExist}
	}
	return n, nil
}

// id identifies a file, as far as the rules that are switched off let it.
func (d *dir) id(name string, n *node) state.FileID {
	id := d.fs.id(n)
	switch {
	case name == "leases" && d.p.w.without(leasesOwnInode):
		id.Device, id.Inode = 0, 0
	case name == "marks" && d.p.w.without(marksIdentity):
		id = state.FileID{}
	}
	return id
}

func (d *dir) Identify(name string) (state.FileID, error) {
	if name == "." {
		return d.fs.id(d.node), nil
	}
	n, err := d.find(name)
	if err != nil {
		return state.FileID{}, err
	}
	return d.id(name, n), nil
}

// Replace may fail before and after the new file has its name, and the process
// may be killed at any step.
func (d *dir) Replace(name string, fill func(state.FileID) []byte) error {
	p, f := d.p, d.fs
	p.mayDie()
	if f.full || p.w.rnd.IntN(40) == 0 || f.scarce && p.w.rnd.IntN(2) == 0 {
		return errFull
	}
	n := &node{inode: f.newInode()}
	f.write(n, fill(d.id(name, n)))
	n.durable = &durable{bytes: slices.Clone(n.bytes())}
	if f.frozen {
		f.stuck = append(f.stuck, stuckWrite{by: p, at: d.node, name: name, file: n})
		return errStalls
	}
	p.mayDie()
	f.put(d.node, name, n)
	p.mayDie()
	if p.w.rnd.IntN(100) == 0 {
		return errBroken
	}
	f.sync(d.node)
	return nil
}

func (d *dir) Map(name string, writable bool) (*state.Mapping, error) {
	n, err := d.find(name)
	if err != nil {
		return nil, err
	}
	if n.size < 8 || n.size%8 != 0 {
		return nil, &state.FileError{Path: d.Path() + "/" + name, Problem: "is damaged"}
	}
	m := &state.Mapping{Words: n.words, ID: d.id(name, n), Unmap: func() error { return nil }}
	if writable {
		n.changed = d.fs.stamp() // the first store to a page
		d.p.marks = n.words
		if (d.p.w.without(expectedSequence) || d.p.w.focus == leasesOwnInode) && n.words[expectWord]&expectVoid == 0 {
			n.words[expectWord] = 0
		}
	}
	return m, nil
}

// expectWord is where the marks say which sequence they expect; expectVoid is set
// in that of void ones.
const (
	expectWord = 2
	expectVoid = 1 << 62
)

func (d *dir) Current() error {
	d.p.check()
	if d.there() != d.node || d.file != nil && d.node.entries[lockName] != d.file {
		return &state.FileError{Path: d.Path(), Problem: "was removed or replaced"}
	}
	return nil
}

// Sub opens a folder. Where this directory was removed it opens the one that has
// its name now, as State.begin does with a real one.
func (d *dir) Sub(name string, create bool) (state.Dir, error) {
	d.p.mayDie()
	if d.there() != d.node {
		d.node = openDir(d.p, d.fs, d.name).node
	}
	n := d.node.entries[name]
	if n == nil && !create {
		return nil, &state.FileError{Path: d.Path() + "/" + name, Problem: "cannot open it", Err: fs.ErrNotExist}
	}
	if n == nil {
		if d.fs.full {
			return nil, errFull
		}
		n = d.fs.newDirectory()
		d.fs.put(d.node, name, n)
	}
	sub := &dir{p: d.p, fs: d.fs, node: n, up: d, name: name}
	d.p.open = append(d.p.open, sub)
	return sub, nil
}

func (d *dir) Subs() ([]string, error) {
	d.p.check()
	return names(d.node, true), nil
}

func (d *dir) RemoveSub(name string) error {
	d.p.mayDie()
	d.fs.remove(d.node, name)
	return nil
}

func (d *dir) Close() error {
	if d.p.gone {
		return nil
	}
	if d.fs.frozen && slices.ContainsFunc(d.fs.stuck, func(s stuckWrite) bool { return s.by == d.p }) {
		d.p.dying = true // the process ends when the write does
		return nil
	}
	d.unlock()
	d.p.open = slices.DeleteFunc(d.p.open, func(o *dir) bool { return o == d })
	return nil
}
