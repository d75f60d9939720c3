package proof

import (
	"maps"
	"math/rand/v2"
	"slices"
	"unsafe"

	"github.com/kazahana/kazahana/internal/state"
)

// fileSystem is a simulated disk, or a simulated file system in memory. It has
// what the state relies on: inodes, locks, mappings, and names that a power failure
// may take back.
type fileSystem struct {
	rnd    *rand.Rand
	device uint64
	root   *node

	reuse  bool     // a new file takes the inode that was freed last, as on ext4
	freed  []uint64 // inodes
	inodes uint64   // that were ever given out

	full   bool
	scarce bool // there is room for some writes
	frozen bool
	stuck  []stuckWrite // what frozen processes were about to write
}

// node is a file or a directory.
type node struct {
	inode uint64
	freed bool // its inode may be another node's by now
	lock  *dir // who holds it

	entries map[string]*node // of a directory; nil for a file
	words   []int64          // of a file
	size    int

	durable *durable // what a power failure leaves; nil: the node was never synced
}

// durable is what a power failure brings back.
type durable struct {
	entries map[string]*node
	bytes   []byte
}

// stuckWrite is a file that will be there when the file system thaws.
type stuckWrite struct {
	by   *process
	at   *node
	name string
	file *node
}

func newFileSystem(w *world, device uint64, reuse bool) *fileSystem {
	f := &fileSystem{rnd: w.rnd, device: device, reuse: reuse}
	f.root = f.newDirectory()
	return f
}

func (f *fileSystem) newInode() uint64 {
	if n := len(f.freed); f.reuse && n > 0 {
		inode := f.freed[n-1]
		f.freed = f.freed[:n-1]
		return inode
	}
	f.inodes++
	return f.inodes
}

func (f *fileSystem) newDirectory() *node {
	return &node{inode: f.newInode(), entries: map[string]*node{}}
}

func (f *fileSystem) newFile(bytes []byte) *node {
	n := &node{inode: f.newInode()}
	f.write(n, bytes)
	return n
}

// write replaces the content in place. A process that has mapped the file sees the new content
// if the size stays.
func (f *fileSystem) write(n *node, bytes []byte) {
	if words := (len(bytes) + 7) / 8; words != len(n.words) {
		n.words = make([]int64, words)
	}
	n.size = len(bytes)
	copy(n.bytes(), bytes)
}

// markWords is the least size of a file that a process may map.
const markWords = 1024

func (n *node) bytes() []byte {
	if n.size == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&n.words[0])), n.size)
}

func (f *fileSystem) id(n *node) state.FileID {
	return state.FileID{Device: f.device, Inode: n.inode}
}

// put makes the name lead to the node, and lets go of the old one.
func (f *fileSystem) put(in *node, name string, n *node) {
	if old := in.entries[name]; old != nil && old != n {
		f.free(old)
	}
	in.entries[name] = n
}

func (f *fileSystem) remove(in *node, name string) {
	if n := in.entries[name]; n != nil {
		f.free(n)
		delete(in.entries, name)
	}
}

// free lets the inodes be used again, each of them once: a process may replace a file in a
// directory that was removed with its files, and a power failure brings files back. A process
// may still have the file open: then its inode stays taken.
func (f *fileSystem) free(n *node) {
	for _, name := range slices.Sorted(maps.Keys(n.entries)) {
		f.free(n.entries[name])
	}
	if !n.freed && n.lock == nil && n.entries == nil && len(n.words) < markWords {
		n.freed = true
		f.freed = append(f.freed, n.inode)
	}
}

// move gives the node another name, as mv does.
func (f *fileSystem) move(from *node, name string, to *node, newName string) {
	n := from.entries[name]
	if n == nil || from == to && name == newName {
		return
	}
	if old := to.entries[newName]; old != nil {
		f.free(old)
	}
	delete(from.entries, name)
	to.entries[newName] = n
}

// sync makes the names in a directory durable.
func (f *fileSystem) sync(n *node) {
	n.durable = &durable{entries: maps.Clone(n.entries)}
	for _, name := range slices.Sorted(maps.Keys(n.entries)) {
		if e := n.entries[name]; e.entries == nil && e.durable == nil {
			e.durable = &durable{bytes: slices.Clone(e.bytes())}
		}
	}
}

// losePower leaves of each directory and file its synced content, or the present one: the kernel
// may have written it out by itself.
func (f *fileSystem) losePower() {
	f.frozen, f.full, f.scarce, f.stuck = false, false, false, nil
	f.loseIn(f.root)
}

func (f *fileSystem) loseIn(n *node) {
	n.lock = nil
	if n.durable != nil && f.rnd.IntN(2) == 0 {
		if n.entries != nil {
			n.entries = maps.Clone(n.durable.entries)
		} else {
			f.write(n, n.durable.bytes)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(n.entries)) {
		f.loseIn(n.entries[name])
	}
}

// thaw ends a freeze: pending writes are written now, if the process still holds the directory's
// lock. Processes that were killed meanwhile end.
func (f *fileSystem) thaw() {
	f.frozen = false
	stuck := f.stuck
	f.stuck = nil
	for _, w := range stuck {
		if !w.by.gone {
			f.put(w.at, w.name, w.file)
			f.sync(w.at)
		}
	}
	for _, w := range stuck {
		if w.by.dying {
			w.by.end()
		}
	}
}

// cloned is a copy of the file system block by block: with its inodes.
func (f *fileSystem) cloned() *fileSystem {
	c := *f
	c.freed, c.stuck, c.frozen = slices.Clone(f.freed), nil, false
	c.root = f.cloneNode(f.root, map[*node]*node{})
	return &c
}

func (f *fileSystem) cloneNode(n *node, done map[*node]*node) *node {
	if c := done[n]; c != nil {
		return c
	}
	c := &node{inode: n.inode, freed: n.freed, size: n.size, words: slices.Clone(n.words)}
	done[n] = c
	entries := func(from map[string]*node) map[string]*node {
		if from == nil {
			return nil
		}
		to := map[string]*node{}
		for _, name := range slices.Sorted(maps.Keys(from)) {
			to[name] = f.cloneNode(from[name], done)
		}
		return to
	}
	c.entries = entries(n.entries)
	if d := n.durable; d != nil {
		c.durable = &durable{entries: entries(d.entries), bytes: d.bytes}
	}
	return c
}
