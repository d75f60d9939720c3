package proof

import (
	"errors"
	"io/fs"
	"regexp"
	"slices"
	"strconv"

	"github.com/kazahana/kazahana/internal/state"
)

// process is one life of a daemon, as the file systems see it.
type process struct {
	w      *world
	open   []*dir
	mapped *node // its marks

	gone  bool // nothing of it runs any more
	dying bool // it was killed, and hangs in a frozen file system: its locks stay
	quiet bool // no kill comes now: the code that runs is not the main goroutine's
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
}

var _ state.Dir = (*dir)(nil)

var (
	errFull   = errors.New("no space left")
	errStalls = errors.New("the disk does not answer")
	errBroken = errors.New("input/output error")
)

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

// Lock locks the directory, as the real one does.
func (d *dir) Lock(record string) error {
	d.p.check()
	if d.up != nil && d.p.w.without(identityLocked) {
		return nil
	}
	if d.node.lock != nil {
		return &state.LockedError{Holder: state.Holder{PID: 1}, Path: d.Path()}
	}
	if record != "" && d.node.entries[record] == nil {
		d.fs.put(d.node, record, d.fs.newFile([]byte("holder")))
	}
	d.node.lock = d
	return nil
}

func (d *dir) unlock() {
	if d.node.lock == d {
		d.node.lock = nil
	}
}

func (d *dir) Read(name string) ([]byte, error) {
	n, err := d.find(name)
	if err != nil {
		return nil, err
	}
	return slices.Clone(n.bytes()), nil
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
	switch {
	case name == "." && d.up != nil && d.p.w.without(folderIdentity), name == "marks" && d.p.w.without(marksIdentity):
		return state.FileID{}
	}
	return d.fs.id(n)
}

func (d *dir) Identify(name string) (state.FileID, error) {
	if name == "." {
		return d.id(name, d.node), nil
	}
	n, err := d.find(name)
	if err != nil {
		return state.FileID{}, err
	}
	return d.id(name, n), nil
}

// Replace may fail before and after the new file has its name, and the process
// may be killed at any step.
func (d *dir) Replace(name string, content []byte) error {
	p, f := d.p, d.fs
	p.mayDie()
	if f.full || p.w.rnd.IntN(40) == 0 || f.scarce && p.w.rnd.IntN(2) == 0 {
		return errFull
	}
	n := &node{inode: f.newInode()}
	f.write(n, content)
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
	if writable {
		d.p.mapped = n
	}
	m := &state.Mapping{Words: n.words, ID: d.id(name, n), Unmap: func() error { return nil }}
	if leases := d.node.entries["leases"]; writable && leases != nil && d.p.w.without(bitsCompared) {
		if bits := bitsOf.FindSubmatch(leases.bytes()); bits != nil {
			next, err := strconv.ParseUint(string(bits[1]), 10, 64)
			must(err, nil)
			n.words[nextWord] = int64(next)
		}
	}
	return m, nil
}

// nextWord is where the marks have the bits of the latest leases file, and bitsOf finds them in
// that.
const nextWord = 2

var bitsOf = regexp.MustCompile(`"bits":(\d+)`)

func (d *dir) Current() error {
	d.p.check()
	if d.there() != d.node {
		return &state.FileError{Path: d.Path(), Problem: "was removed or replaced"}
	}
	return nil
}

// Sub opens a folder, and makes it where there is none.
func (d *dir) Sub(name string) (state.Dir, error) {
	d.p.mayDie()
	n := d.node.entries[name]
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
