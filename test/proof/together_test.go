package proof

import (
	"slices"
	"time"
)

// wholePace is how much slower leases end in a whole world: the terms of locks are
// longer than those of the leases of the other worlds.
const wholePace = 8

// together is what a whole world has beside the services of IDs.
type together struct {
	pace       int64   // 1 but in a whole world
	current    *daemon // with which something happens
	net        *network
	records    *records
	forgets    bool        // the stores fall back now and then
	servers    *servers    // of leases; nil: the daemons use the provider directly
	kind       storeKind   // what keeps the records. Where that is SQLite, leases are in a file too, if real is set
	databases  []*database // of SQLite
	leases     *leaseFile  // nil: the leases are in none
	leaseModel *leaseModel // of a server; nil: the leases are in none
	errands    []*errand
	beliefs    map[string][]*belief
	back       map[string]bool  // leases that their holders gave back
	tokens     map[string]int64 // the greatest of each lock
	wanted     []*wanted        // requests for locks that may be repeated
	taken      []*taken
	given      map[string]map[int64]bool // values of sequences
	most       map[string]int64          // the greatest of them, or of declared ones
	meets      map[string]map[string]int // faults and the states they met
	// lockTrail is the knowledge of the locks; lockSteps are the steps that were followed.
	lockTrail *lockTrail
	lockSteps int
	// Likewise of the actors.
	placeTrail *placeTrail
	placeSteps int
}

// drawKind says by the seed what keeps the records: each kind as often as the others. A rule of
// stores that may forget needs one of those.
func (w *world) drawKind() storeKind {
	kinds := []storeKind{onRedis, onPostgres, onEtcd, onSQLite}
	switch {
	case w.focus == watermarkKept:
		return onSQLite
	case w.focus == unconfirmedNotUsed:
		kinds = kinds[:1]
	case w.focus >= forgottenTermsFenced && w.focus <= forgottenLeasesFenced:
		kinds = kinds[:2]
	case w.dir == "": // there is no file system in memory
		kinds = kinds[:3]
	}
	return kinds[w.seed/2%uint64(len(kinds))] // with either provider, see TestSimulation
}

// join makes the store of records and the way to it.
func (w *world) join() {
	w.net = &network{w: w, loss: pick(w, []int{0, 5, 20})}
	w.records, w.forgets = newRecords(w), w.rnd.IntN(2) == 0
	w.beliefs, w.tokens = map[string][]*belief{}, map[string]int64{}
	w.back = map[string]bool{}
	w.given, w.most = map[string]map[int64]bool{}, map[string]int64{}
	w.meets = map[string]map[string]int{}
	w.lockTrail, w.placeTrail = newLockTrail(w), &placeTrail{w: w, lives: map[*message]membershipOf{}}
}

// eventTogether lets a thing happen that is not about IDs, and then messages and time
// go on.
func (w *world) eventTogether() {
	d := pick(w, w.daemons)
	w.current = d
	if d.life != nil {
		switch p := w.rnd.IntN(10); {
		case p < 3:
			d.life.host.useLocks()
		case p < 5:
			d.life.host.useSequences()
		case p < 8:
			d.life.host.actors.useActors()
		}
	}
	often := 300
	if w.focus >= forgottenTermsFenced && w.focus <= unconfirmedNotUsed || w.focus == watermarkKept || w.focus == restoredExtendsNothing {
		often = 60
	}
	if w.servers != nil && w.rnd.IntN(60) == 0 {
		w.servers.restart()
	}
	if w.forgets && w.rnd.IntN(often) == 0 {
		w.records.fallBack(w.rnd.IntN(30))
	}
	if w.leaseModel != nil && w.kind != onEtcd && w.rnd.IntN(often/4) == 0 {
		w.leaseModel.fallBack()
	}
	for _, f := range w.databases {
		f.event(often)
	}
	w.net.some(6)
	if w.rnd.IntN(2) == 0 {
		w.sleep(time.Duration(w.rnd.IntN(30)) * time.Millisecond)
		w.net.settle()
	}
}

// part ends what waits, once all processes have ended.
func (w *world) part() {
	for len(w.errands) > 0 {
		time.Sleep(callTimeout)
		w.net.settle()
	}
	w.closeDatabases()
	time.Sleep(time.Minute) // drivers try to clean up for some seconds
}

// rules that are not about IDs, which can be switched off likewise.
const (
	forgottenTermsFenced rule = allRules + 1 + iota
	floorOverLives
	forgottenValuesFenced
	forgottenLeasesFenced
	unconfirmedNotUsed
	termFromSending
	lossObeyed
	promiseEnds
	watermarkKept

	allWholeRules
)

// wholeRules says for each what its breach does.
var wholeRules = map[rule]struct{ rule, breach string }{
	forgottenTermsFenced:  {"a store that may have forgotten grants no lock for a while", "it grants at once"},
	floorOverLives:        {"tokens go on above the floor in a new life of the store", "above what is remembered"},
	forgottenValuesFenced: {"a sequence that may have been forgotten hands out nothing", "it goes on from an earlier value"},
	forgottenLeasesFenced: {"a store that may have forgotten grants no machine ID for a while", "it grants at once"},
	unconfirmedNotUsed:    {"a lease that too few replicas have confirmed is not used", "it is, and a failover loses it"},
	termFromSending:       {"a holder counts its term from before the request was sent", "from the answer"},
	promiseEnds:           {"a process relies on an actor no longer than it was promised", "a term longer"},
	watermarkKept:         {"a SQLite file is not put back while its watermark is lost", "both happen at once"},
	lossObeyed:            {"a holder ends when its host tells of the loss", "it goes on"},
}

// states are what a daemon may be in when a fault comes.
var states = []struct {
	name string
	is   func(*daemon) bool
}{
	{"leases held", func(d *daemon) bool { return d.has(func(s *stream) bool { return len(s.held) > 0 }) }},
	{"cached lease alone", func(d *daemon) bool {
		return d.has(func(s *stream) bool { return len(s.held) == 0 && s.cached != nil })
	}},
	{"no lease", func(d *daemon) bool {
		return d.has(func(s *stream) bool { return len(s.held) == 0 && s.cached == nil })
	}},
	{"lease call under way", func(d *daemon) bool { return d.has(func(s *stream) bool { return s.busy }) }},
	{"IDs waited for", func(d *daemon) bool { return d.has(func(s *stream) bool { return len(s.waiting) > 0 }) }},
	{"lock kept", func(d *daemon) bool {
		now := time.Since(d.w.began)
		for _, key := range lockKeys {
			if slices.ContainsFunc(d.w.beliefs[key], func(b *belief) bool { return b.by != nil && b.by.d == d && now < b.end() }) {
				return true
			}
		}
		return false
	}},
	{"call under way", func(d *daemon) bool {
		return slices.ContainsFunc(d.w.errands, func(e *errand) bool { return e.by.d == d })
	}},
	{"actors activated", (*daemon).hasActors},
	{"daemon down", func(d *daemon) bool { return d.life == nil }},
	{"store fenced", func(d *daemon) bool { return d.w.records.fenced() }},
	{onSQLite.state(), func(d *daemon) bool { return d.w.kind == onSQLite }},
	{onRedis.state(), func(d *daemon) bool { return d.w.kind == onRedis }},
	{onEtcd.state(), func(d *daemon) bool { return d.w.kind == onEtcd }},
	{onPostgres.state(), func(d *daemon) bool { return d.w.kind == onPostgres }},
}

func (d *daemon) has(is func(*stream) bool) bool {
	return d.life != nil && slices.ContainsFunc(d.life.streams, is)
}

// met notes in which states a fault finds the daemon that it concerns.
func (w *world) met(what string) {
	if w.meets[what] == nil {
		w.meets[what] = map[string]int{}
	}
	for _, s := range states {
		if w.current != nil && s.is(w.current) {
			w.meets[what][s.name]++
		}
	}
}
