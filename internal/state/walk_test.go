package state

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// TestRandomWalk has daemons with three state directories of one host started,
// killed at each step, their writes failing, and an operator who copies, restores,
// removes, swaps and damages whatever there is. Beside it runs the naive model:
//
//   - No lease that a Save removed, well or badly, is loaded again, nor one from
//     before the last boot.
//   - No lease is loaded by two living daemons.
//   - A daemon that loads a lease starts from a mark that is not below any that was
//     raised with it.
//   - Where nobody interfered, a restart after a kill -9 finds everything.
func TestRandomWalk(t *testing.T) {
	ring.All(t)
	var adopted, started int
	for seed := range *walks {
		w := newWalk(uint64(seed))
		w.run(t, 150)
		adopted, started = adopted+w.adopted, started+w.started
	}
	t.Logf("%d walks, %d starts, %d leases adopted", *walks, started, adopted)
	if adopted < *walks {
		t.Errorf("only %d leases were adopted in %d walks: they show nothing", adopted, *walks)
	}
}

var walks = flag.Int("state.walks", 300, "number of random walks")

const walkDaemons = 3

var (
	walkServices = []string{"a", "b"}
	walkPlaces   = []string{"/live", "/live", "/live", "/live", "/live", "/live", "/other", ""}
)

type walk struct {
	rand       *rand.Rand
	disk, live *simFS
	boot       int
	pids       int
	clockMS    int64
	daemons    [walkDaemons]walkDaemon
	leases     map[int64]*walkLease
	history    []string

	adopted, started int
}

type walkDaemon struct {
	proc     *simProc
	state    *State              // nil: it does not run
	services map[string]*Service // likewise
	content  map[string]Saved
	place    string
	clean    bool // nobody has interfered since it started
}

type walkLease struct {
	service string
	removed bool
	mark    int64 // the greatest that was raised with it
}

func newWalk(seed uint64) *walk {
	return &walk{
		rand: rand.New(rand.NewPCG(seed, 1)), leases: map[int64]*walkLease{}, clockMS: 1_000_000,
		disk: newSimFS(true, "s0", "s1", "s2", "bak"), live: newSimFS(false, "live", "other", "bak"),
	}
}

// violation ends a run.
type violation string

func (w *walk) violated(format string, args ...any) {
	panic(violation(fmt.Sprintf(format, args...)))
}

func (w *walk) say(format string, args ...any) {
	w.history = append(w.history, fmt.Sprintf(format, args...))
}

func (w *walk) run(t *testing.T, steps int) {
	t.Helper()
	defer func() {
		switch r := recover().(type) {
		case nil:
		case violation:
			t.Fatalf("%s\n%s\ndisk:\n%slive:\n%s", r, strings.Join(w.history, "\n"), w.disk.show(w.disk.root, "  "), w.live.show(w.live.root, "  "))
		default:
			t.Logf("%s", strings.Join(w.history, "\n"))
			panic(r)
		}
	}()
	for range steps {
		w.step()
	}
	for i := range w.daemons {
		w.stop(i, w.daemons[i].state != nil)
	}
}

func (w *walk) step() {
	i := w.rand.IntN(walkDaemons)
	d := &w.daemons[i]
	n := w.rand.IntN(100)
	switch {
	case d.state == nil && n < 75:
		w.start(i, true)
	case d.state == nil && n < 78:
		w.maintain(i)
	case d.state != nil && n < 65:
		w.use(i)
	case d.state != nil && n < 75:
		w.stop(i, w.rand.IntN(3) == 0)
	case d.state != nil && n < 80 && d.clean:
		w.restart(i)
	case n < 85:
		w.tamperDisk(i)
	case n < 91:
		w.tamperLive()
	case n < 98:
		w.rollBack(i)
	case n < 99:
		w.collect()
	case w.rand.IntN(3) == 0:
		w.reboot()
	}
}

// do runs a step of the daemon that may crash; it reports whether it did not.
func (w *walk) do(d *walkDaemon, what string, f func() error) (alive bool) {
	defer func() {
		if r := recover(); r != nil {
			crash, ok := r.(simCrash)
			if !ok {
				panic(r)
			}
			w.say("  killed at its step %d", crash.steps)
			d.proc.kill(w.disk, w.live)
			d.state, alive = nil, false
		}
	}()
	w.say("%s", what)
	if err := f(); err != nil {
		w.say("  %v", err)
	}
	if d.proc.failed > 0 {
		d.clean = false
	}
	return true
}

// mischief makes the process crash or fail soon, or not.
func (w *walk) mischief(d *walkDaemon) {
	p := d.proc
	p.crashAt, p.failAt, p.fails = 0, 0, 0
	switch w.rand.IntN(12) {
	case 0:
		p.crashAt = p.steps + 1 + w.rand.IntN(20)
	case 1:
		p.failAt, p.fails = p.steps+1+w.rand.IntN(20), 1+w.rand.IntN(6)
	}
}

func (w *walk) options() Options {
	boot := fmt.Sprint("boot ", w.boot)
	return Options{Identity: func() Identity { return Identity{MachineID: "machine", BootID: boot} }, Log: zap.NewNop()}
}

func (w *walk) open(i int, place string, blind bool) (s *State, err error) {
	d := &w.daemons[i]
	var live Dir
	if place != "" {
		live = w.live.open(d.proc, place)
	}
	return openOn(context.Background(), w.disk.open(d.proc, fmt.Sprint("/s", i)), live, w.options(), blind)
}

func (w *walk) newProc() *simProc {
	w.pids++
	return &simProc{pid: w.pids}
}

func (w *walk) start(i int, mischief bool) {
	d := &w.daemons[i]
	*d = walkDaemon{proc: w.newProc(), place: d.place}
	if mischief {
		d.place = walkPlaces[w.rand.IntN(len(walkPlaces))]
		w.mischief(d)
	}
	var s *State
	alive := w.do(d, fmt.Sprintf("start %d with live %q", i, d.place), func() (err error) {
		s, err = w.open(i, d.place, false)
		return err
	})
	if s == nil {
		d.proc.kill(w.disk, w.live)
		return
	}
	d.proc.crashAt, d.proc.fails = 0, 0
	if !alive {
		return
	}
	d.state, d.services, d.content, d.clean = s, map[string]*Service{}, map[string]Saved{}, d.proc.failed == 0
	w.started++
	services := walkServices
	if w.rand.IntN(4) == 0 {
		services = services[:1] // the other one is configured again some day
	}
	for _, name := range services {
		sv, err := s.Service(name)
		if err != nil {
			w.violated("service %s: %v", name, err)
		}
		d.services[name] = sv
		w.load(i, sv)
	}
}

// load checks what a daemon finds.
func (w *walk) load(i int, sv *Service) {
	d := &w.daemons[i]
	saved, name := sv.Load(), sv.Name()
	w.say("  %d has identity %s and finds %s: mark %d, leases %v", i, d.state.folder[:4], name, sv.Mark(), idsOf(saved))
	for _, l := range all(saved) {
		w.adopted++
		m := w.leases[l.ID]
		switch {
		case m.service != name:
			w.violated("lease %d is of service %s, and %s has it", l.ID, m.service, name)
		case m.removed:
			w.violated("lease %d was removed, and is loaded again", l.ID)
		case sv.Mark() < m.mark:
			w.violated("lease %d was used up to %d, and the mark is %d", l.ID, m.mark, sv.Mark())
		}
		for j := range w.daemons {
			if j != i && w.daemons[j].state != nil && slices.Contains(idsOf(w.daemons[j].content[name]), l.ID) {
				w.violated("lease %d is used by %d too", l.ID, j)
			}
		}
	}
	d.content[name] = saved
}

func all(s Saved) []lease.Lease {
	held := slices.Clone(s.Held)
	if s.Cached != nil {
		held = append(held, *s.Cached)
	}
	return held
}

func idsOf(s Saved) (ids []int64) {
	for _, l := range all(s) {
		ids = append(ids, l.ID)
	}
	return ids
}

// use has a daemon do what daemons do.
func (w *walk) use(i int) {
	d := &w.daemons[i]
	name := walkServices[w.rand.IntN(len(d.services))]
	w.mischief(d)
	switch w.rand.IntN(9) {
	case 0:
		w.do(d, fmt.Sprintf("look %d", i), func() error { d.state.Look(); return d.state.Health().LiveErr })
	case 1:
		w.do(d, fmt.Sprintf("sync %d", i), d.state.Sync)
	case 2, 3, 4:
		w.clockMS += 1 + w.rand.Int64N(5)
		w.say("raise %d %s to %d", i, name, w.clockMS)
		for _, id := range idsOf(d.content[name]) {
			w.leases[id].mark = w.clockMS
		}
		d.services[name].RaiseMark(w.clockMS)
	default:
		w.save(i, name)
	}
	d.proc.crashAt, d.proc.fails = 0, 0
}

func (w *walk) save(i int, name string) {
	d := &w.daemons[i]
	before := d.content[name]
	saved := before.clone()
	saved.Timeline, saved.Source = testTimeline, SourceLease
	switch n := w.rand.IntN(3); {
	case n == 0 && len(saved.Held) > 0:
		saved.Held = slices.Delete(saved.Held, 0, 1)
	case n == 1 && len(saved.Held) > 0:
		saved.Cached, saved.Held = &saved.Held[0], slices.Clone(saved.Held[1:])
	default:
		id := int64(len(w.leases) + 1)
		w.leases[id] = &walkLease{service: name, mark: 0}
		saved.Held = append(saved.Held, testLease(id, id))
	}
	w.do(d, fmt.Sprintf("save %d %s: %v", i, name, idsOf(saved)), func() error {
		err := d.services[name].Save(saved)
		d.content[name] = saved
		for _, id := range idsOf(before) {
			if !slices.Contains(idsOf(saved), id) {
				w.leases[id].removed = true
			}
		}
		return err
	})
}

func (w *walk) stop(i int, gently bool) {
	d := &w.daemons[i]
	if d.state == nil {
		return
	}
	if gently {
		w.do(d, fmt.Sprintf("stop %d", i), d.state.Close)
	} else {
		w.say("kill %d", i)
	}
	d.proc.kill(w.disk, w.live)
	d.state = nil
}

// restart finds everything where nobody has interfered.
func (w *walk) restart(i int) {
	d := &w.daemons[i]
	content, marks, place := d.content, map[string]int64{}, d.place
	for name, sv := range d.services {
		marks[name] = sv.Mark()
	}
	w.stop(i, w.rand.IntN(2) == 0)
	w.start(i, false)
	if d.state == nil {
		w.violated("the daemon does not start again")
	}
	for name, sv := range d.services {
		before, was := content[name]
		if got, want := idsOf(sv.Load()), idsOf(before); was && place != "" && !slices.Equal(got, want) {
			w.violated("%s: leases %v after the restart, and %v before", name, got, want)
		}
		if before, was := marks[name]; was && sv.Mark() != before {
			w.violated("%s: mark %d after the restart, and %d before", name, sv.Mark(), marks[name])
		}
	}
}

// maintain plays `kazahanad state reset-floor`.
func (w *walk) maintain(i int) {
	d := &w.daemons[i]
	blind := w.rand.IntN(4) == 0
	place := d.place
	if blind {
		place = ""
	}
	*d = walkDaemon{proc: w.newProc(), place: d.place}
	w.do(d, fmt.Sprintf("reset-floor %d, blind: %v", i, blind), func() error {
		s, err := w.open(i, place, blind)
		if err != nil {
			return err
		}
		service := append(walkServices, "")[w.rand.IntN(3)]
		_, err = s.resetFloor(service, w.clockMS-20, func() {
			if w.rand.IntN(4) == 0 {
				panic(simCrash{d.proc})
			}
		})
		return errors.Join(err, s.Close())
	})
	d.proc.kill(w.disk, w.live)
}

func (w *walk) reboot() {
	w.say("reboot")
	for i := range w.daemons {
		w.stop(i, false)
	}
	w.boot++
	if w.rand.IntN(2) == 0 { // else it is a file system that stays: then only the boot ID tells
		w.live = newSimFS(false, "live", "other", "bak")
	}
	for _, l := range w.leases {
		l.removed = true
	}
}

// collect has the folders removed that nobody has locked, as if long had passed.
func (w *walk) collect() {
	w.say("remove abandoned folders")
	removeAbandoned(w.live.open(w.newProc(), "/live"), "", 1<<60, zap.NewNop())
	w.interfered()
}

func (w *walk) interfered() {
	for i := range w.daemons {
		w.daemons[i].clean = false
	}
}

// one is a random name in the directory; "" for none.
func (w *walk) one(n *simNode, keep func(*simNode) bool) string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(n.sub)) {
		if keep(n.sub[name]) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return names[w.rand.IntN(len(names))]
}

func isDir(n *simNode) bool  { return n.sub != nil }
func isFile(n *simNode) bool { return n.sub == nil }

// tamperDisk plays with the state directory i as a whole.
func (w *walk) tamperDisk(i int) {
	w.interfered()
	f, own := w.disk, fmt.Sprint("s", i)
	bak := f.at("/bak")
	switch w.rand.IntN(7) {
	case 0, 1:
		name := fmt.Sprint("of ", own, " ", len(bak.sub))
		w.say("cp -a %s %q", own, name)
		bak.sub[name] = f.copyOf(f.at(own))
	case 2:
		if name := w.one(bak, isDir); name != "" {
			w.say("rm -rf %s; cp -a %q %s", own, name, own)
			f.empty(f.at(own))
			f.root.sub[own] = f.copyOf(bak.sub[name])
		}
	case 3:
		if name := w.one(bak, isDir); name != "" {
			w.say("cp %q/* %s (in place)", name, own)
			f.copyInto(f.at(own), bak.sub[name])
		}
	case 4:
		other := fmt.Sprint("s", (i+1)%walkDaemons)
		w.say("swap %s and %s", own, other)
		f.root.sub[own], f.root.sub[other] = f.root.sub[other], f.root.sub[own]
	case 5:
		other := fmt.Sprint("s", (i+1)%walkDaemons)
		w.say("cp -a %s %s", own, other)
		f.empty(f.at(other))
		f.root.sub[other] = f.copyOf(f.at(own))
	case 6:
		if name := w.one(f.at(own), isFile); name != "" {
			w.say("rm %s/%s", own, name)
			f.unlink(f.at(own), name)
		}
	}
}

// tamperLive plays with the files and folders of the live state.
func (w *walk) tamperLive() {
	w.interfered()
	f := w.live
	base, bak := f.at("/live"), f.at("/bak")
	folder := w.one(base, isDir)
	if folder == "" {
		return
	}
	in := base.sub[folder]
	name := w.one(in, isFile)
	saved := w.one(bak, isFile)
	stored := w.one(bak, isDir)
	path := folder[:4] + "/" + name
	switch n := w.rand.IntN(13); {
	case n == 0:
		w.say("mv the folder %s away", folder[:4])
		bak.sub[folder] = in
		delete(base.sub, folder)
	case n == 1 && stored != "":
		w.say("mv the folder %s back", stored[:4])
		base.sub[stored] = bak.sub[stored]
		delete(bak.sub, stored)
	case n == 2:
		w.say("rm -rf the folder %s", folder[:4])
		f.empty(in)
		delete(base.sub, folder)
	case n == 3 && len(base.sub) > 1:
		other := w.one(base, func(n *simNode) bool { return n != in })
		w.say("swap the folders %s and %s", folder[:4], other[:4])
		base.sub[folder], base.sub[other] = base.sub[other], in
	case name == "":
	case n == 4:
		w.say("cp %s to %s", path, fmt.Sprint(name, len(bak.sub)))
		copied := f.node(false)
		f.write(copied, in.sub[name].content())
		bak.sub[fmt.Sprint(name, len(bak.sub))] = copied
	case n == 5:
		w.say("ln %s %s", path, fmt.Sprint(name, len(bak.sub)))
		f.link(bak, fmt.Sprint(name, len(bak.sub)), in.sub[name])
	case n == 6:
		w.say("mv %s to %s", path, fmt.Sprint(name, len(bak.sub)))
		f.link(bak, fmt.Sprint(name, len(bak.sub)), in.sub[name])
		f.unlink(in, name)
	case n == 7 || n == 8:
		if from := w.one(bak, func(n *simNode) bool { return n.sub == nil }); from != "" && strings.HasPrefix(from, name) {
			w.say("ln -f %s %s", from, path)
			f.link(in, name, bak.sub[from])
		}
	case n == 9 && saved != "" && strings.HasPrefix(saved, name):
		w.say("cp %s %s (in place)", saved, path)
		f.write(in.sub[name], bak.sub[saved].content())
	case n == 10:
		w.say("zero %s", path)
		f.write(in.sub[name], make([]byte, in.sub[name].size))
	case n == 11:
		w.say("rm %s", path)
		f.unlink(in, name)
	case n == 12:
		w.say("chmod %s", path)
		f.touch(in.sub[name])
	}
}

// rollBack has an operator set something aside, a daemon go on, and the operator
// put it back.
func (w *walk) rollBack(i int) {
	w.interfered()
	f, base := w.live, w.live.at("/live")
	d := &w.daemons[i]
	if d.state == nil || d.state.live == nil || base.sub[d.state.folder] == nil {
		return
	}
	folder, names := d.state.folder, []string{leasesName, marksName}
	if n := w.rand.IntN(4); n < 2 {
		names = names[n : n+1]
	}
	how := []string{"in place", "by rename", "its own inode"}[w.rand.IntN(3)]
	aside := map[string]*simNode{}
	for _, name := range names {
		n := base.sub[folder].sub[name]
		if n == nil {
			return
		}
		if aside[name] = n; how != "its own inode" {
			aside[name] = f.node(false)
			f.write(aside[name], n.content())
		}
	}
	w.say("set %v of %s aside", names, folder[:4])
	if how == "its own inode" && w.rand.IntN(2) == 0 {
		for _, name := range names {
			f.unlink(base.sub[folder], name)
		}
	}
	for range w.rand.IntN(6) {
		switch n := w.rand.IntN(6); {
		case d.state == nil:
			w.start(i, n == 0)
		case n == 0:
			w.stop(i, false)
		default:
			w.use(i)
		}
	}
	in := base.sub[folder]
	if in == nil {
		return
	}
	w.say("put %v of %s back, %s", names, folder[:4], how)
	for _, name := range names {
		switch n := in.sub[name]; {
		case how == "in place" && n != nil:
			f.write(n, aside[name].content())
		default:
			f.link(in, name, aside[name])
		}
	}
	for range w.rand.IntN(4) {
		if d.state != nil {
			w.use(i)
		}
	}
	if d.state != nil && w.rand.IntN(2) == 0 {
		w.do(d, fmt.Sprintf("look %d", i), func() error { d.state.Look(); return nil })
	}
	w.stop(i, false)
	w.start(i, false)
}

func (f *simFS) copyOf(from *simNode) *simNode {
	to := f.node(true)
	f.copyInto(to, from)
	return to
}

func (f *simFS) copyInto(to, from *simNode) {
	for _, name := range slices.Sorted(maps.Keys(from.sub)) {
		if from.sub[name].sub != nil {
			continue
		}
		if to.sub[name] == nil {
			to.sub[name] = f.node(false)
		}
		f.write(to.sub[name], from.sub[name].content())
	}
}

func (f *simFS) empty(n *simNode) {
	for _, name := range slices.Sorted(maps.Keys(n.sub)) {
		f.unlink(n, name)
	}
}
