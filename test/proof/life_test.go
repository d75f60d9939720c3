package proof

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kazahana/kazahana/internal/generator"
	"github.com/kazahana/kazahana/internal/keeper"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/state"
	"github.com/kazahana/kazahana/test/trace"
)

// machine has a disk, memory, and boots now and then.
type machine struct {
	w            *world
	name         string
	id           string // a clone may have it too
	boots        int
	disk, memory *fileSystem

	// disturbed counts what can cost the order of IDs: power failures, and what
	// operators do to the two places.
	disturbed int
}

func (m *machine) identity() state.Identity {
	if m.w.without(bootAndMachine) {
		return state.Identity{MachineID: "everywhere", BootID: "always"}
	}
	return state.Identity{MachineID: m.id, BootID: fmt.Sprint("boot ", m.boots)}
}

// daemon is a daemon that a service manager starts and stops.
type daemon struct {
	w        *world
	name     string
	at       *machine
	dir      string // its state directory
	live     string // its live directory; "": none
	services []*service
	offset   atomic.Int64 // its clock minus the true time, in ms; jumps
	phase    time.Duration
	life     *life // nil: it is down

	// The order of IDs holds over the lives in one folder, if nothing disturbs.
	folder string
	seen   int // machine.disturbed
}

// service is one stream of IDs over all lives of a daemon.
type service struct {
	name string
	cfg  generator.Config
	last snowflake.ID // the stream ascends
}

// life is a daemon's process.
type life struct {
	d       *daemon
	p       *process
	disk    *dir
	st      *state.State
	streams []*stream
	host    *host // nil: it has nothing but streams
}

func (d *daemon) clock() int64 { return d.w.nowMS() + d.offset.Load() }

func (d *daemon) jump(ms int64) { d.offset.Add(ms * d.w.pace) }

// memory is the file system of the live directory.
func (d *daemon) memory() *fileSystem {
	if d.w.liveOnDisk {
		return d.at.disk
	}
	return d.at.memory
}

// stopped is a context that is done: no caller waits for locks.
var stopped = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// start begins a life, if the daemon is down and the state lets it.
func (d *daemon) start() {
	if d.life != nil {
		return
	}
	l := &life{d: d, p: &process{w: d.w}}
	d.life = l
	l.run(func() {
		err := l.begin()
		if err == nil {
			return
		}
		d.w.tells("%s cannot start: %v", d.name, err)
		d.w.count("start failed")
		if errors.As(err, new(*state.FileError)) && d.w.rnd.IntN(2) == 0 {
			d.at.disk.remove(l.disk.node, "state") // an operator moves the damaged file away
		}
		if !l.p.dying {
			l.p.end()
		}
	})
}

// begin opens the state as the product does, and builds the services on it.
func (l *life) begin() (err error) {
	d := l.d
	l.disk = openDir(l.p, d.at.disk, d.dir)
	var base state.Dir
	if d.live != "" {
		base = openDir(l.p, d.memory(), d.live)
	}
	if l.st, err = state.OpenOn(stopped, l.disk, base, state.Options{Identity: d.at.identity}); err != nil {
		return err
	}
	for _, other := range d.w.daemons {
		if other != d && other.at == d.at && other.life != nil && other.life.st != nil && other.life.st.Owner() == l.st.Owner() {
			d.w.broken("%s and %s take locks as one owner", other.name, d.name)
		}
	}
	if live := l.st.Health().Live; live != d.folder || d.seen != d.at.disturbed {
		for _, svc := range d.services {
			svc.last = 0
		}
		d.folder, d.seen = live, d.at.disturbed
	}
	for _, svc := range d.services {
		sv, err := l.st.Service(svc.name)
		if err != nil {
			return errors.Join(err, l.close())
		}
		if sv.Load().Source == state.SourceNone {
			if err := sv.Save(state.Saved{Timeline: d.w.timeline, Source: state.SourceConfig}); err != nil {
				return errors.Join(err, l.close())
			}
		}
		l.streams = append(l.streams, &stream{life: l, svc: svc, sv: sv})
	}
	for _, s := range l.streams {
		s.begin()
	}
	if d.w.whole {
		l.openHost()
	}
	return nil
}

func (s *stream) begin() {
	w := s.d.w
	saved, floor := s.Load(), s.sv.Mark()
	w.trail.starts(s, saved, floor)
	w.tells("%s starts in %s with the mark at %d ms and %v", s.name(), s.st.Health().Live, floor-w.began.UnixMilli(), saved.Held)
	if len(saved.Held) > 0 || saved.Cached != nil {
		w.count("leases adopted")
	}
	if w.without(markExclusive) && floor > 0 {
		floor--
	}
	s.gen = generator.New(generator.Options{
		Config: s.svc.cfg, Timeline: saved.Timeline, Floor: floor,
		StartupWait: pick(w, []time.Duration{0, 20 * time.Millisecond}),
		Clock:       s, Mark: s, Rand: newRand(w.rnd.Uint64()),
	})
	s.keeper = s.newKeeper()
}

// callDeadline is longer than a world: what a call without an answer comes to, the wire says.
const callDeadline = 24 * time.Hour

func (s *stream) keeperConfig() keeper.Config {
	pace := time.Duration(s.d.w.pace)
	return keeper.Config{
		Service: s.svc.name, MaxThroughput: s.svc.cfg.MaxThroughput, RetryInterval: pace * 4 * time.Millisecond,
		RetryMax: pace * 20 * time.Millisecond, VerifyEvery: pace * 15 * time.Millisecond, CallTimeout: callDeadline,
	}
}

// run lets code of the process run until it returns or the process is killed.
func (l *life) run(f func()) {
	if l.over() {
		return
	}
	defer func() {
		if l.over() {
			l.bury()
		}
		if r := recover(); r != nil && r != (killed{l.p}) {
			panic(r)
		}
	}()
	f()
}

func (l *life) over() bool { return l.p.gone || l.p.dying }

// bury stops the rest of the process: its timers.
func (l *life) bury() {
	for _, s := range l.streams {
		if s.gen != nil {
			s.gen.Stop()
		}
		l.d.w.trail.killed(s)
	}
	if l.d.life == l {
		l.d.life = nil
	}
	l.host.crash()
}

// kill is kill -9.
func (d *daemon) kill() {
	if d.life != nil {
		l := d.life
		d.w.tells("%s is killed", d.name)
		l.p.die()
		l.bury()
	}
}

// stop is a planned stop. The product stops the generator first; the keeper
// does not rely on that.
func (d *daemon) stop() {
	l := d.life
	if l == nil {
		return
	}
	d.w.tells("%s stops", d.name)
	l.run(func() {
		w := d.w
		if l.host != nil {
			l.host.stop()
		}
		first := w.rnd.IntN(2) == 0 && !w.without(sealedBeforeSending)
		for _, s := range l.streams {
			if first {
				s.gen.Stop()
			}
			s.turn(s.shutDown)
			if saved := s.sv.Load(); len(saved.Held) > 0 || saved.Cached != nil {
				w.count("leases kept at a stop")
			}
		}
		if w.without(sealedBeforeSending) { // and the generator goes on
			for range 6 {
				w.tick()
				w.othersStep(d)
				l.p.check()
			}
		}
		for _, s := range l.streams {
			s.gen.Stop()
		}
		_ = l.close() // a full or frozen disk is no reason to go on
		if !l.p.dying {
			l.p.end()
		}
	})
}

// close closes the state, which runs the last write in a goroutine of its own: no
// panic may end that one.
func (l *life) close() error {
	l.p.quiet = true
	return l.st.Close()
}

// boot ends all processes of the machine and empties its memory.
func (m *machine) boot() {
	m.shut()
	m.disk.losePower()
	m.start()
}

// shut ends all processes of the machine.
func (m *machine) shut() {
	for _, d := range m.w.daemons {
		if l := d.life; d.at == m && l != nil {
			l.p.end()
			l.bury()
		}
	}
}

func (m *machine) start() {
	m.w.trail.note(trace.PoolStep{Do: "Boot", Machine: m.name})
	m.boots = m.w.number()
	m.memory = newFileSystem(m.w, memoryDevice, m.w.rnd.IntN(2) == 0)
	m.disturbed++
}

// sync brings the floors to the disk, as State.Run does about once a second.
func (l *life) sync() {
	l.run(func() {
		if l.d.w.without(markInLiveState) {
			for _, s := range l.streams {
				s.sv.RaiseMark(s.gen.LastMS() + 1)
			}
		}
		if l.st.Sync() != nil {
			l.d.w.count("state file not written")
		}
	})
}
