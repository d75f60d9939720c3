package proof

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/turns"
)

// optimist is a process's client of Redis or etcd. Its rules run in the process, on its last
// look, and the server compares that before it carries the writes out. The product's package
// turns says which call has the turn, and when a decision holds.
type optimist struct {
	record.Store // for all but changes and reads
	s            *records
	way          way
	nowMS        func() int64 // the host's clock; it is the time where the server is etcd
	turns        *turns.Turns[seen]

	mu   sync.Mutex
	last sight // no more than its view counts
}

// seen is a record as a server showed it.
type seen struct {
	stamp
	record.Record
	life string
}

// sight is a look at all that an ask names.
type sight struct {
	record.View
	records []seen // in the order of the ask; version 0 is an absent one
	at      time.Duration
}

func newOptimist(s *records, w way, rest record.Store, nowMS func() int64) *optimist {
	o := &optimist{Store: rest, s: s, way: w, nowMS: nowMS, turns: turns.New(func(k seen) int { return len(k.Value) })}
	o.turns.Repeatable()
	return o
}

func (o *optimist) etcd() bool { return o.s.kind == onEtcd }

// elapsed is the process's clock that cannot be set.
func (o *optimist) elapsed() time.Duration { return time.Since(o.s.w.began) }

// attempt is one call of Change. It implements turns.Change.
type attempt struct {
	*optimist
	ask   record.Ask
	rule  record.Rule
	sight sight
	sure  bool // it was the present during the call
	timed bool // the server has said how much is left of each term
	over  []bool
	atMS  int64 // by the host's clock, where that is the time
}

type attemptKey struct{}

// Change implements record.Store.
func (o *optimist) Change(ctx context.Context, ask record.Ask, rule record.Rule) (atMS int64, err error) {
	if err := cmp.Or(ask.Validate(), ctx.Err()); err != nil {
		return 0, err
	}
	if err := o.way.turn(ctx, "change "+strings.Join(ask.Keys, " ")); err != nil {
		return 0, err
	}
	held, err := o.turns.Take(ctx, ask.Keys)
	if err != nil {
		return 0, err
	}
	defer held.Give()
	a := &attempt{optimist: o, ask: ask, rule: rule}
	o.mu.Lock()
	a.sight.View, a.sight.at = o.last.View, o.last.at
	o.mu.Unlock()
	a.sight.NowMS += (o.elapsed() - a.sight.at).Milliseconds() // an estimate
	for _, key := range ask.Keys {
		k := held.Known(key)
		if o.etcd() && k.life != a.sight.Life {
			k = seen{} // another cluster's
		}
		a.sight.records = append(a.sight.records, k)
	}
	atMS, err = turns.Run(ctx, held, a, "the model", ask, o.s.area.Checked(ask, rule))
	for i, key := range ask.Keys {
		if k := a.sight.records[i]; k.version > 0 {
			held.Remember(key, k)
		} else {
			held.Forget(key)
		}
	}
	return atMS, err
}

// View implements turns.Change. On Redis, a rule that compares times gets those of the server;
// while there is a fence, all do.
func (a *attempt) View() (v record.View, ok bool) {
	if a.sight.Life == "" || !a.sure && (a.sight.Fence.Doubt || a.ask.Fresh && !a.etcd()) {
		return v, false
	}
	v = a.sight.View
	if a.etcd() {
		v.NowMS = a.nowMS()
	}
	v.Records, a.over = map[string]record.Record{}, nil
	for i, k := range a.sight.records {
		r := a.s.asShown(k, v.NowMS, a.timed)
		if a.over = append(a.over, r.Over); k.version > 0 {
			v.Records[a.ask.Keys[i]] = r
		}
	}
	return v, true
}

// asShown is the record as a rule is shown it. Redis says when a term ends, by its own clock.
// Of etcd, a process knows whether it has ended; how much is left follows from the clocks of
// hosts, and from what etcd says.
func (s *records) asShown(k seen, nowMS int64, timed bool) record.Record {
	r := k.Record
	r.Value = slices.Clone(r.Value)
	switch {
	case s.kind != onEtcd:
		return record.WithTerm(r.Value, r.EndMS, nowMS)
	case k.write.TermMS == 0:
		return record.Record{Value: r.Value}
	}
	r.EndMS = k.atMS + k.write.TermMS
	left := min(r.EndMS-nowMS, k.write.TermMS)
	if timed {
		left = min(left, r.LeftMS)
	}
	if r.LeftMS = max(left, 1); r.Over {
		r.LeftMS = 0
	}
	return r
}

// Settled implements turns.Change.
func (a *attempt) Settled(refused bool) bool { return a.sure && (refused || a.timed) }

// Confirm implements turns.Change. etcd has to be asked once more how much is left of terms, and
// the replicas of Redis whether they have the sight.
func (a *attempt) Confirm(ctx context.Context) error {
	before, wasSure := a.sight, a.sure
	_, err := a.ride(ctx, "look ", nil)
	if err == nil && !a.etcd() && wasSure {
		err = a.s.confirm(nil)
	}
	same := slices.EqualFunc(before.records, a.sight.records, func(x, y seen) bool { return x.version == y.version && x.Over == y.Over })
	a.timed = err == nil && (!a.etcd() && !a.s.waits || wasSure && (same || !a.etcd()))
	return err
}

// Commit implements turns.Change.
func (a *attempt) Commit(ctx context.Context, writes []record.Write) (atMS int64, o turns.Outcome, err error) {
	wasSure := a.sure
	if a.etcd() {
		a.atMS = a.nowMS()
	}
	done, err := a.ride(ctx, "change ", writes)
	lost := errors.Is(err, errLost)
	if lost { // the connection broke: once more, at another member or by another connection
		done, err = a.ride(ctx, "change again ", writes)
	}
	own := slices.IndexFunc(a.sight.records, func(k seen) bool { return k.by == a })
	switch {
	case err != nil:
		return 0, turns.Old, err
	case done != nil:
		return a.committed(done, writes), turns.Done, a.s.confirm(writes)
	case lost && own >= 0 && a.etcd(): // the first try was carried out, as its record shows
		return a.sight.records[own].atMS, turns.Done, a.s.confirm(writes)
	case lost:
		return 0, turns.Old, record.ErrOutrun
	case wasSure:
		a.sure = false // by the next try, after a pause
		return 0, turns.Raced, nil
	}
	return 0, turns.Old, nil
}

// committed takes the writes for seen, and returns their moment.
func (a *attempt) committed(done *committed, writes []record.Write) (atMS int64) {
	atMS = cmp.Or(a.atMS, done.atMS)
	a.sight.records = slices.Clone(a.sight.records)
	for _, w := range writes {
		k := &a.sight.records[slices.Index(a.ask.Keys, w.Key)]
		if w.Value == nil {
			a.sight.Floor = max(a.sight.Floor, w.Mark, k.write.Mark)
			*k = seen{}
			continue
		}
		*k = seen{stamp{done.version, a, atMS, w}, record.Record{Value: w.Value}, a.sight.Life}
		if w.TermMS > 0 {
			k.EndMS = done.atMS + w.TermMS
		}
	}
	a.remember()
	return atMS
}

// remember keeps what the process knows of the store.
func (a *attempt) remember() {
	a.optimist.mu.Lock()
	defer a.optimist.mu.Unlock()
	a.last = a.sight
	a.last.Records, a.last.records = nil, nil
}

// committed is what the server says of a commit.
type committed struct{ atMS, version int64 }

// errLater: the rule wants to write, and the process decides on that.
var errLater = errors.New("the process decides again")

// ride is a round trip. The server carries the writes out where all is as it was seen, and else,
// or without writes, shows the present.
func (a *attempt) ride(ctx context.Context, what string, writes []record.Write) (*committed, error) {
	var done *committed
	var present *sight
	seen, over, sent := a.sight, a.over, a.elapsed()
	err := a.way.send(ctx, what+strings.Join(a.ask.Keys, " "), func(store record.Store) error {
		as := &committed{}
		at, err := store.Change(context.WithValue(context.Background(), attemptKey{}, a), a.ask, func(v record.View) ([]record.Write, error) {
			if writes != nil && a.s.same(a.ask, seen, over, v) {
				as.version = a.s.versions + 1
				return writes, nil
			}
			present = a.s.sight(a.ask, v)
			return nil, nil
		})
		if err != nil || present != nil {
			return cmp.Or(err, a.says(present))
		}
		as.atMS, done = at, as
		return nil
	})
	switch {
	case errors.Is(err, errLost), err != nil && ctx.Err() != nil:
		return nil, err
	case done != nil:
		return done, nil
	case present == nil:
		return nil, err
	}
	present.at = sent
	a.sight, a.sure = *present, true
	a.remember()
	return nil, nil
}

// says is what the rule says of the present, for the traces. The process runs it again.
func (a *attempt) says(present *sight) error {
	own := slices.ContainsFunc(present.records, func(k seen) bool { return k.by == a })
	if own || !a.s.w.whole {
		return nil
	}
	wanted, err := a.rule(present.View)
	if err == nil && len(wanted) > 0 {
		return errLater
	}
	return err
}

// same compares with all that was seen. A record that is absent may have been there in between,
// and then the floor has risen. Redis compares its life too, and etcd its fence.
func (s *records) same(ask record.Ask, seen sight, over []bool, v record.View) bool {
	if s.lives != nil && v.Life != seen.Life || v.Fence != seen.Fence || v.Floor != seen.Floor {
		return false
	}
	if ask.Fresh && s.kind == onRedis && v.NowMS < seen.NowMS {
		return false
	}
	for i, k := range s.sight(ask, v).records {
		if k.version != seen.records[i].version || k.Over != over[i] {
			return false
		}
	}
	return true
}

// sight is what a process sees that is shown the view.
func (s *records) sight(ask record.Ask, v record.View) *sight {
	seeing := &sight{View: v}
	for _, key := range ask.Keys {
		var k seen
		if r, there := v.Records[key]; there {
			k = seen{s.stamps[key], r, v.Life}
		}
		seeing.records = append(seeing.records, k)
	}
	return seeing
}

// Read implements record.Store.
func (o *optimist) Read(ctx context.Context, ask record.Ask) (record.View, error) {
	if err := cmp.Or(ask.Validate(), ctx.Err()); err != nil {
		return record.View{}, err
	}
	a := &attempt{optimist: o, ask: ask, rule: func(record.View) ([]record.Write, error) { return nil, nil }}
	for !a.sure || a.etcd() && !a.timed {
		if err := a.Confirm(ctx); err != nil {
			return record.View{}, err
		}
	}
	v, _ := a.View()
	return v, nil
}

// List implements record.Store.
func (o *optimist) List(ctx context.Context, prefix, after string, limit int) (page []record.Head, err error) {
	if !o.etcd() {
		return o.Store.List(ctx, prefix, after, limit)
	}
	heads := make(chan []record.Head, 1)
	err = o.way.send(ctx, "list "+prefix, func(store record.Store) error {
		page, err := store.List(context.Background(), prefix, after, limit)
		o.s.mu.Lock()
		defer o.s.mu.Unlock()
		for i, h := range page {
			page[i] = record.HeadOf(h.Key, o.s.asShown(seen{o.s.stamps[h.Key], h.Record, ""}, o.nowMS(), false))
		}
		heads <- page
		return err
	})
	if err == nil {
		page = <-heads
	}
	return page, err
}
