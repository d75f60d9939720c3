package proof

import "time"

// event lets one thing happen.
func (w *world) event() {
	d := pick(w, w.daemons)
	w.current = d
	if d.life == nil && w.rnd.IntN(4) == 0 {
		d.start()
	}
	switch p := w.rnd.IntN(230); {
	case p < 60:
		w.tick()
		w.stepSome()
	case p < 100:
		d.ask(30, w.rnd.IntN(3) > 0)
	case p < 110:
		w.chorus()
	case p < 164:
		d.step()
	case p < 172:
		d.jump(w.rnd.Int64N(61) - 30)
	case p < 176:
		w.skew += w.pace * (w.rnd.Int64N(61) - 30)
	case p < 178:
		w.skew = w.rnd.Int64N(5) - 2
	case p < 187:
		d.offset.Store(pick(w, []int64{-1, 0, 0, 0, 1})) // an operator sets it right
	case p < 188:
		w.downUntil = w.nowMS() + w.pace*w.rnd.Int64N(100)
	case p < 193:
		w.endLife(d)
	case p < 194:
		if s := d.stream(); s != nil {
			s.svc.cfg = w.drawConfig() // of the next life
		}
	case p < 199:
		w.deliver()
	case p < 209:
		w.behindTheScenes(d)
	case p < 209+w.disasters:
		w.disaster(d)
	default:
		w.about(d)
	}
}

// chorus is the moment at which equal IDs show: all ask for as many as there are.
func (w *world) chorus() {
	w.streams(func(s *stream) { s.ask(1+w.rnd.Int64N(8), false) })
	for _, x := range w.extenders {
		x.make()
	}
}

// tick lets time pass, and with it the timers of the generators.
func (w *world) tick() {
	for range w.rnd.IntN(5) {
		w.sleep(time.Millisecond)
		w.chorus()
	}
	w.sleep(time.Duration(w.rnd.IntN(10)) * 100 * time.Microsecond)
	for _, m := range w.machines {
		if m.disk.frozen && w.rnd.IntN(8) == 0 {
			m.disk.thaw()
		}
		if w.rnd.IntN(4) == 0 {
			m.disk.full, m.memory.full, m.disk.scarce, m.memory.scarce = false, false, false, false
		}
	}
}

// sleep lets time pass, and takes what callers got from timers. It ends at no
// moment at which a timer fires, or chance would say which comes first: those fire
// when a daemon's clock shows a full millisecond (see daemon.phase), or 100 ms after
// a sleep ended (generator.maxNap).
func (w *world) sleep(d time.Duration) {
	time.Sleep(d + time.Nanosecond)
	w.streams((*stream).collect)
}

// offGrid is when in a millisecond a world begins.
const offGrid = 50 * time.Microsecond

// stepSome lets some of the keepers take their due steps.
func (w *world) stepSome() {
	for _, d := range w.daemons {
		if w.rnd.IntN(2) == 0 {
			d.step()
		}
	}
}

// othersStep lets the keepers of the other daemons take their due steps.
func (w *world) othersStep(d *daemon) {
	for _, other := range w.daemons {
		if other != d {
			other.step()
		}
	}
}

// streams calls f with every stream of every daemon that is up.
func (w *world) streams(f func(*stream)) {
	for _, d := range w.daemons {
		if d.life != nil {
			for _, s := range d.life.streams {
				f(s)
			}
		}
	}
}

// endLife ends a life in one of the ways there are, and begins the next.
func (w *world) endLife(d *daemon) {
	if w.rnd.IntN(2) == 0 {
		if w.rnd.IntN(2) == 0 {
			d.ask(5, true) // and then the clock is set back, before the release
			d.jump(-w.rnd.Int64N(15))
		}
		d.stop()
		if w.rnd.IntN(2) == 0 {
			w.tick()
		}
	} else {
		d.kill()
	}
	if w.rnd.IntN(4) > 0 {
		d.start()
	}
}

// behindTheScenes is what State.Run and the kernel do.
func (w *world) behindTheScenes(d *daemon) {
	f := d.at.disk
	switch l := d.life; w.rnd.IntN(8) {
	case 0, 1, 2, 3:
		if l != nil {
			l.sync()
		}
	case 4, 5, 6:
		if !w.liveOnDisk && w.rnd.IntN(12) == 0 {
			f.frozen = true
			w.count("disks frozen")
		}
	case 7:
		if w.rnd.IntN(2) == 0 {
			f = d.memory()
		}
		if w.rnd.IntN(3) == 0 {
			f.full, f.scarce = w.rnd.IntN(2) == 0, true
			w.count("file systems full")
		}
	}
}

// disaster is what happens to the two places.
func (w *world) disaster(d *daemon) {
	switch p := w.rnd.IntN(24); {
	case p < 5:
		w.backUp(d)
	case p < 9:
		w.restore(d)
	case p < 13:
		w.harm(d)
	case p < 15:
		w.moveBack()
	case p < 16:
		w.swap(d)
	case p < 17:
		w.removeLive(d)
	case p < 18:
		w.moveFolder(d)
		w.moveFiles(d)
	case p < 19:
		w.atAnothers(d)
	case p < 20:
		w.count("machines booted")
		d.at.boot()
	case p < 21:
		w.cloneMachine(d.at)
	case p < 22:
		w.longPause()
	case p < 23:
		w.restoreStore()
	}
}

// longPause is a pause in which all leases end.
func (w *world) longPause() {
	if w.whole { // receipts would all be gone
		return
	}
	if w.rnd.IntN(4) == 0 {
		w.sleep(25 * time.Hour)
		w.count("long pauses")
	}
}

// atAnothers starts the daemon on the state directory of another one of its
// machine, which may run.
func (w *world) atAnothers(d *daemon) {
	other := pick(w, w.daemons)
	if other.at != d.at || other == d {
		return
	}
	d.at.disturbed++
	d.kill()
	own := d.dir
	d.dir = other.dir
	d.start()
	d.dir = own
	d.at.disturbed++
}

// ask asks one of the daemon's services for up to most IDs.
func (d *daemon) ask(most int64, fallback bool) {
	if s := d.stream(); s != nil {
		s.ask(1+d.w.rnd.Int64N(most), !fallback)
	}
}

// step lets the keeper of one of the services take its due steps.
func (d *daemon) step() {
	if s := d.stream(); s != nil {
		s.step()
	}
}

// stream is one of the daemon's, or nil while it is down.
func (d *daemon) stream() *stream {
	if d.life == nil || len(d.life.streams) == 0 {
		return nil
	}
	return pick(d.w, d.life.streams)
}

// meanwhile is what happens while a call of the stream is under way.
func (w *world) meanwhile(s *stream) {
	switch w.rnd.IntN(10) {
	case 0, 1:
		w.tick()
	case 2, 3, 4:
		s.ask(1+w.rnd.Int64N(10), false)
	case 5:
		s.d.jump(w.rnd.Int64N(61) - 30)
	case 6:
		w.skew += w.rnd.Int64N(21) - 10
	case 7:
		s.impatient()
	case 8, 9:
		if w.depth > 0 { // a daemon does one thing at a time
			return
		}
		w.depth++
		if other := pick(w, w.daemons); other != s.d {
			w.elsewhere(other)
		} else {
			w.deliver()
		}
		w.depth--
	}
}

// elsewhere is an act of another daemon, or of an operator, during a call.
func (w *world) elsewhere(d *daemon) {
	switch w.rnd.IntN(12) {
	case 0:
		w.disaster(d)
	case 1:
		w.behindTheScenes(d)
	case 2:
		w.endLife(d)
	case 3:
		d.start()
	default:
		d.step()
		d.ask(10, true)
	}
}
