package proof

// about lets something happen that the world's rule is about. It is what happens
// elsewhere too; here it happens often.
func (w *world) about(d *daemon) {
	switch w.focus {
	case restoredStoreFenced:
		w.restoreStore()
	case unknownIsGone, sentOnce:
		w.stopAndGoOn(d)
	case removedBeforeSending, sealedBeforeSending, releasedNeverCached:
		w.endLife(d)
	case recordKept, endBoundAtRelease, releaseCoversLastEmbedded:
		w.stopAhead(d)
	case markInLiveState, markExclusive:
		w.restart(d)
	case adoptedFromLiveStateOnly:
		w.backUpAndRestore(d)
	case identityLocked:
		w.copyBeside(d)
	case folderIdentity:
		w.loseFolder(d)
	case marksIdentity:
		w.rollBack(d, "marks")
	case bitsCompared:
		w.rollBack(d, "leases")
	case bootAndMachine:
		w.newBoot(d)
	case restoredExtendsNothing:
		w.aheadAndBack()
	}
}

// restart is a kill -9 and a start, with the clock set back perhaps.
func (w *world) restart(d *daemon) {
	d.kill()
	if w.rnd.IntN(2) == 0 {
		d.jump(-w.rnd.Int64N(10))
	}
	d.start()
}

// backUpAndRestore puts a backup back while the daemon is down.
func (w *world) backUpAndRestore(d *daemon) {
	switch w.rnd.IntN(3) {
	case 0:
		w.backUp(d)
	case 1:
		d.stop()
		w.restore(d)
		d.start()
	}
}

// copyBeside copies the daemon's state directory to another daemon, and starts
// that one.
func (w *world) copyBeside(d *daemon) {
	other := pick(w, w.daemons)
	from := d.statePlace()
	if other == d || from.node() == nil {
		return
	}
	other.kill()
	b := backup{name: d.dir, files: filesIn(from.node())}
	w.put(other.statePlace(), b, removed, nil)
	other.start()
}

// stopAhead stops a daemon with a clock that is ahead, or was until now.
func (w *world) stopAhead(d *daemon) {
	ahead := w.rnd.Int64N(20)
	d.jump(ahead)
	d.ask(8, true)
	if w.rnd.IntN(2) == 0 {
		d.jump(-ahead)
	}
	d.stop()
	w.tick()
	d.offset.Store(0)
	d.start()
}

// stopAndGoOn stops a daemon and starts it again, while releases are on their way.
func (w *world) stopAndGoOn(d *daemon) {
	d.stop()
	d.start()
	if w.rnd.IntN(2) == 0 {
		w.deliver()
		w.goOn()
	}
}

// loseFolder moves the folder of a running daemon away, so that another daemon may take its name,
// and perhaps back.
func (w *world) loseFolder(d *daemon) {
	folder, ok := d.ownFolder()
	if !ok || w.rnd.IntN(3) > 0 {
		return
	}
	if w.rnd.IntN(2) == 0 {
		w.keep(backup{name: d.dir, files: filesIn(d.life.disk.node)})
	}
	if w.rnd.IntN(2) == 0 {
		w.moveFiles(d)
		w.goOn()
		return
	}
	w.moveAway(folder)
	if w.rnd.IntN(2) == 0 {
		w.copyBeside(d)
	}
	w.goOn()
	if w.rnd.IntN(2) == 0 {
		w.moveBack()
	}
	w.copyBeside(d)
	if w.rnd.IntN(2) == 0 {
		w.restart(pick(w, w.daemons))
	}
}

// rollBack puts an older copy of a live file back, and lets the daemon start on
// it.
func (w *world) rollBack(d *daemon, name string) {
	at, ok := d.ownFolder()
	if !ok || at.node().entries[name] == nil || w.rnd.IntN(3) > 0 {
		return
	}
	b := backup{live: true, name: at.name, files: filesIn(at.node())}
	w.goOn()
	if w.rnd.IntN(2) == 0 {
		d.stop()
	} else {
		d.kill()
		d.jump(-w.rnd.Int64N(10))
	}
	if at.node() != nil {
		w.put(at, b, pick(w, []manner{inPlace, renamed}), []string{name})
	}
	d.start()
	w.goOn()
}

// goOn is some ordinary time.
func (w *world) goOn() {
	for range w.rnd.IntN(6) {
		w.tick()
		w.stepSome()
	}
}

// newBoot starts the daemon's machine anew, or a clone of it.
func (w *world) newBoot(d *daemon) {
	switch w.rnd.IntN(6) {
	case 0:
		d.at.boot()
	case 1:
		w.cloneMachine(d.at)
	case 2:
		if d.life != nil {
			d.life.sync()
		}
	}
}

// restoreStore makes a copy of the provider's store, or puts one back.
func (w *world) restoreStore() {
	if w.store == nil || w.rnd.IntN(4) > 0 {
		return
	}
	if w.rnd.IntN(3) > 0 || len(w.stores) == 0 {
		w.copyStore()
		return
	}
	w.putStoreBack(pick(w, w.stores))
}

func (w *world) copyStore() {
	w.trail.befalls("Backup")
	w.stores = append(w.stores[max(0, len(w.stores)-3):], w.store.copied())
}

func (w *world) putStoreBack(c content) {
	w.count("stores restored")
	w.store.restore(c)
	w.trail.befalls("Restore")
}

// aheadAndBack has the store's clock go ahead and back, and the store forget its grants from
// then.
func (w *world) aheadAndBack() {
	if w.store == nil || w.rnd.IntN(8) > 0 {
		return
	}
	w.copyStore()
	w.skew = w.pace * (20 + w.rnd.Int64N(60))
	for range w.rnd.IntN(4) {
		w.stepSome()
	}
	w.skew = 0
	w.putStoreBack(w.stores[len(w.stores)-1])
}
