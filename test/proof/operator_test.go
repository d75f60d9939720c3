package proof

import (
	"maps"
	"slices"
	"strings"
)

// What operators, backup programs and accidents do to the two places.

// backup is a copy of a state directory or of a folder of a live directory.
type backup struct {
	live  bool
	name  string // of the directory
	files map[string][]byte
}

// keptBackups is how many there are at a time: old ones are thrown away.
const keptBackups = 8

// names are those of the directories in a directory, or of the files.
func names(in *node, directories bool) []string {
	if in == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Sorted(maps.Keys(in.entries)), func(name string) bool {
		return (in.entries[name].entries != nil) != directories
	})
}

func pick[T any](w *world, of []T) T { return of[w.rnd.IntN(len(of))] }

// place is a directory that a process can reach.
type place struct {
	fs   *fileSystem
	up   *node // where its name is
	name string
}

func (p place) node() *node { return p.up.entries[p.name] }

// disturb notes that the place may have lost what the order of IDs rests on.
func (w *world) disturb(f *fileSystem) {
	for _, m := range w.machines {
		if m.disk == f || m.memory == f {
			m.disturbed++
		}
	}
}

// statePlace is the state directory of the daemon.
func (d *daemon) statePlace() place { return place{d.at.disk, d.at.disk.root, d.dir} }

// livePlace is a folder in the daemon's live directory: its own mostly.
func (d *daemon) livePlace() (place, bool) {
	if own, ok := d.ownFolder(); ok && d.w.rnd.IntN(3) > 0 {
		return own, true
	}
	f := d.memory()
	base := f.root.entries[d.live]
	folders := names(base, true)
	if d.live == "" || len(folders) == 0 {
		return place{}, false
	}
	return place{f, base, pick(d.w, folders)}, true
}

// ownFolder is the folder that the daemon uses now, if it is still there.
func (d *daemon) ownFolder() (place, bool) {
	base := d.memory().root.entries[d.live]
	if d.live == "" || base == nil || d.life == nil {
		return place{}, false
	}
	own := place{d.memory(), base, d.life.st.Health().Live[len(d.live)+1:]}
	return own, own.node() != nil
}

// somePlace picks one of the two places of the daemon.
func (d *daemon) somePlace() (at place, live, ok bool) {
	if d.w.rnd.IntN(2) == 0 {
		at, ok = d.livePlace()
		return at, true, ok
	}
	at = d.statePlace()
	return at, false, at.node() != nil
}

// backUp copies one of the two places of the daemon.
func (w *world) backUp(d *daemon) {
	at, live, ok := d.somePlace()
	if !ok {
		return
	}
	if live {
		w.trail.befalls("CopyFiles")
	}
	w.keep(backup{live: live, name: at.name, files: filesIn(at.node())})
}

func (w *world) keep(b backup) {
	w.backups = append(w.backups[max(0, len(w.backups)-keptBackups+1):], b)
	w.count("backups taken")
}

func filesIn(n *node) map[string][]byte {
	files := map[string][]byte{}
	for _, name := range names(n, false) {
		files[name] = slices.Clone(n.entries[name].bytes())
	}
	return files
}

// restore puts a backup back: where it came from, or to another daemon; the
// daemon may be running.
func (w *world) restore(d *daemon) {
	if len(w.backups) == 0 {
		return
	}
	b := pick(w, w.backups)
	at := d.statePlace()
	if b.live {
		base := d.memory().root.entries[d.live]
		if d.live == "" || base == nil {
			return
		}
		at = place{d.memory(), base, b.name}
		if other, ok := d.livePlace(); ok && w.rnd.IntN(3) == 0 {
			at = other
		}
	}
	files := slices.Sorted(maps.Keys(b.files))
	if w.rnd.IntN(3) == 0 && len(files) > 0 {
		files = []string{pick(w, files)} // one file alone
	}
	w.put(at, b, manner(w.rnd.IntN(3)), files)
}

// manner is how a file takes the place of another.
type manner int

const (
	removed manner = iota // rm -r, then cp -r: the directory is another one too
	inPlace               // cp: the inode stays
	renamed               // as rsync does: the directory stays
)

// put puts files of a backup back; none are all.
func (w *world) put(at place, b backup, how manner, files []string) {
	w.count("backups put back")
	w.tells("a copy of %s is put at %s, manner %d", b.name, at.name, how)
	w.befell(b, files)
	w.disturb(at.fs)
	if len(files) == 0 {
		files = slices.Sorted(maps.Keys(b.files))
	}
	if how == removed || at.node() == nil {
		at.fs.put(at.up, at.name, at.fs.newDirectory())
	}
	for _, name := range files {
		// Marks that are overwritten in place by older ones are outside of the proof.
		if n := at.node().entries[name]; n != nil && how == inPlace && (!b.live || name != "marks") {
			at.fs.write(n, b.files[name])
		} else {
			at.fs.put(at.node(), name, at.fs.newFile(b.files[name]))
		}
	}
}

// befell notes which files of a backup are put back; none are all.
func (w *world) befell(b backup, files []string) {
	puts := func(name string) bool { return b.live && (len(files) == 0 || slices.Contains(files, name)) }
	if !b.live {
		w.trail.befalls("CopyDirectory")
	}
	if puts("leases") {
		w.trail.befalls("PutLeases")
	}
	if puts("marks") {
		w.trail.befalls("PutMarks")
	}
}

// harm loses or damages a file, or moves something away.
func (w *world) harm(d *daemon) {
	at, _, ok := d.somePlace()
	if !ok {
		return
	}
	w.disturb(at.fs)
	w.count("files lost or damaged")
	if w.rnd.IntN(4) == 0 {
		w.moveAway(at)
		return
	}
	if w.rnd.IntN(6) == 0 {
		at.fs.remove(at.up, at.name)
		return
	}
	files := names(at.node(), false)
	if len(files) == 0 {
		return
	}
	name := pick(w, files)
	n := at.node().entries[name]
	switch w.rnd.IntN(4) {
	case 0:
		at.fs.write(n, make([]byte, n.size)) // zeroed
	case 1:
		at.fs.write(n, nil) // cut short
		w.faults(n)
	case 2:
		w.moveAway(place{at.fs, at.node(), name})
	default:
		at.fs.remove(at.node(), name)
	}
}

// faults ends the processes that have mapped the file, as SIGBUS does.
func (w *world) faults(n *node) {
	for _, d := range w.daemons {
		if d.life != nil && d.life.p.mapped == n {
			d.kill()
		}
	}
}

// asideSuffix is what the name of something that was moved away ends in.
const asideSuffix = ".aside"

func (w *world) moveAway(at place) {
	if strings.HasSuffix(at.name, asideSuffix) || at.node() == nil {
		return
	}
	w.trail.befalls("MoveAway")
	w.disturb(at.fs)
	at.fs.move(at.up, at.name, at.up, at.name+asideSuffix)
	w.asides = append(w.asides, at)
}

// moveBack gives something its name back, in place of what has it now.
func (w *world) moveBack() {
	n := len(w.asides)
	if n == 0 {
		return
	}
	i := w.rnd.IntN(n)
	a := w.asides[i]
	w.asides = append(w.asides[:i:i], w.asides[i+1:]...)
	if a.up.entries[a.name+asideSuffix] == nil {
		return
	}
	w.trail.befalls("MoveBack")
	w.disturb(a.fs)
	w.count("moved back")
	a.fs.move(a.up, a.name+asideSuffix, a.up, a.name)
}

// swap gives two state directories of one disk each other's names.
func (w *world) swap(d *daemon) {
	other := pick(w, w.daemons)
	root := d.at.disk.root
	a, b := root.entries[d.dir], root.entries[other.dir]
	if other.at != d.at || other == d || a == nil || b == nil {
		return
	}
	root.entries[d.dir], root.entries[other.dir] = b, a
	w.disturb(d.at.disk)
	w.count("state directories swapped")
}

// moveFiles moves the live files of a running daemon into the folder of another one of its
// machine.
func (w *world) moveFiles(d *daemon) {
	other := pick(w, w.daemons)
	from, ok := d.ownFolder()
	to, there := other.ownFolder()
	if !ok || !there || other == d || from.fs != to.fs {
		return
	}
	w.trail.befalls("MoveFiles")
	w.count("files moved to another folder")
	w.disturb(from.fs)
	for _, name := range []string{"leases", "marks"} {
		from.fs.move(from.node(), name, to.node(), name)
	}
	other.kill()
	other.start()
}

// removeLive removes the live directory with all that is in it.
func (w *world) removeLive(d *daemon) {
	if d.live != "" {
		d.memory().remove(d.memory().root, d.live)
		w.disturb(d.memory())
	}
}

// moveFolder moves a folder to the live directory of another daemon of the
// machine.
func (w *world) moveFolder(d *daemon) {
	other := pick(w, w.daemons)
	at, ok := d.livePlace()
	if !ok || other.at != d.at || other.live == "" || other.live == d.live {
		return
	}
	if base := d.memory().root.entries[other.live]; base != nil {
		at.fs.move(at.up, at.name, base, at.name)
		w.disturb(at.fs)
		w.count("folders moved to another live directory")
	}
}

// cloneMachine starts another machine from a copy of this one's disk, block by
// block, perhaps with its machine ID.
func (w *world) cloneMachine(from *machine) {
	to := pick(w, w.machines)
	if to == from {
		return
	}
	to.shut()
	to.disk = from.disk.cloned()
	to.disk.losePower()
	if w.rnd.IntN(2) == 0 {
		to.id = from.id
	}
	to.start()
	w.trail.befalls("CloneMachine")
	w.count("machines cloned")
}
