package search

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/placement"
	"github.com/kazahana/kazahana/internal/placement/driver"
	"github.com/kazahana/kazahana/internal/placement/storage"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/memory"
)

// The rules of placement that a world can break, in the words of docs/model.
const (
	ownerEnded        rule = "nobody takes over while the old owner's membership lasts"
	newerOnly         rule = "a record is replaced by newer ones alone"
	tokenKept         rule = "a removed record leaves its token"
	countedFromBefore rule = "a membership is counted from before"
	begunInTime       rule = "nothing is begun after the membership"
	membershipKept    rule = "what is activated keeps the membership"
	promiseBounded    rule = "a promise ends with the membership"
	promiseShort      rule = "a promise ends before the patience"
	patienceKept      rule = "a silent process may still rely on it"
)

// places is a world of hosts that may run one actor, each with a process: the product's
// placement driver, on its locks and activation records. Reads and key locks are prompt; what
// is written, a request about a membership, and a call of a process may come late or never.
type places struct {
	placesSetting
	now       int64 // ms since the beginning
	records   *memory.Store
	locks     *lock.Records
	storage   storage.Storage
	hosts     []*placeHost
	late      []lateCall // on their way, and nobody waits for their answers
	ids       int
	accidents int
	asked     bool  // for the actor
	reserved  int64 // the greatest token on record
	relied    int64 // the greatest token that a process has relied on
	fault     string
}

// placesSetting is the bounds of a world.
type placesSetting struct {
	ticks   int64 // the time runs for so many
	ttl     int64 // of memberships and locks, in ticks
	most    int   // accidents: what is lost or late, and what ends or comes without need
	joins   bool  // hosts become members in the course of events, not before
	apart   bool  // the second became a member a tick after the first
	kinds   bool  // processes come and go; else each host takes itself for the actor's authority
	without []int8
	off     rule
}

const (
	placeTick = 2000 // ms: a promise lasts for one and a half
	patience  = 5000 // ms: a host waits so long for its process
)

var actor = placement.Key{Kind: "cart", Identity: "7"}

// placeHost is a host with a process.
type placeHost struct {
	w    *places
	name string

	core    *driver.Core
	command *placement.Command // under way
	begun   int64
	asking  *lock.Request // about the membership
	sent    int64
	answer  *membership

	serves bool  // its process has registered
	runs   int64 // the token of what its process has activated; 0: nothing
	until  int64 // the process relies on it
}

// membership is the answer to a request about one.
type membership struct {
	lease lock.Lease
	err   error
}

// lateCall is a write that arrives late, or an activation.
type lateCall struct {
	host   int
	op     placement.Op
	record placement.Record
	keep   bool
}

func newPlaces(s placesSetting) func() world {
	return func() world {
		w := &places{placesSetting: s}
		w.records = memory.New(func() int64 { return beganMS + w.now })
		w.locks, w.storage = lock.OnRecords(w.records), storage.OnRecords(w.records)
		for i := range 2 {
			w.hosts = append(w.hosts, &placeHost{w: w, name: fmt.Sprint("host-", i)})
		}
		for _, h := range w.hosts {
			h.serves = true
			h.start()
			if !s.joins {
				h.answers()
				h.hears(*h.answer)
			}
			if s.apart && h == w.hosts[0] {
				w.now += placeTick
			}
		}
		for _, h := range w.hosts {
			h.run(h.core.Changed(h.moment()))
		}
		return w
	}
}

func (h *placeHost) moment() placement.Moment {
	return placement.Moment{Boot: ms(h.w.now), UnixMS: beganMS + h.w.now}
}

// start begins a life of the host.
func (h *placeHost) start() {
	terms := driver.Terms{
		Authority: h.name, TTL: ms(h.w.ttl * placeTick), Interval: time.Second,
		NewID: func() string { h.w.ids++; return requestID(beganMS, h.w.ids) },
	}
	if !h.w.kinds {
		terms.Strategy = func([]string) func(placement.Key) string {
			return func(placement.Key) string { return h.name }
		}
	}
	h.core, h.command, h.asking, h.answer = driver.NewCore(terms), nil, nil, nil
	h.register()
	h.run(h.core.Start(h.moment()))
}

func (h *placeHost) register() {
	var kinds []string
	if h.serves {
		kinds = []string{actor.Kind}
	}
	h.run(h.core.SetKinds(kinds, h.moment()))
}

// run does what the core wants.
func (h *placeHost) run(fx driver.Effects) {
	if fx.Ask != nil {
		h.asking, h.sent = fx.Ask, h.w.now
	}
	for _, c := range fx.Begin {
		h.begin(c)
	}
	if fx.Look {
		members, err := h.w.members()
		h.run(h.core.Looked(members, err, h.moment()))
	}
}

// begin carries out what is prompt, and has the rest under way.
func (h *placeHost) begin(c placement.Command) {
	w, ctx := h.w, context.Background()
	var r placement.Result
	switch {
	case c.Op == placement.TryAcquire:
		w.ids++
		id := requestID(beganMS, w.ids)
		var l lock.Lease
		l, r.Err = w.locks.Do(ctx, h.about("activation/"+c.Key.String(), lock.Request{Op: lock.Acquire, LeaseID: id, RequestID: id, TTLMS: w.ttl * placeTick}))
		r.Lease = placement.Lease{ID: l.LeaseID, Token: l.Token}
		_, r.Denied = errors.AsType[*lock.HeldError](r.Err)
	case c.Op == placement.Release:
		_, r.Err = w.locks.Do(ctx, h.about("activation/"+c.Key.String(), lock.Request{Op: lock.Release, LeaseID: c.Lease.ID}))
	case c.Op == placement.CheckOwner:
		l, err := w.locks.Get(ctx, "default", "members/"+c.Record.Owner.Authority)
		r.Ended = err != nil || l.State != lock.Active || l.Token != c.Record.Owner.Token || w.off == ownerEnded
	case c.Op == placement.Load:
		r.Record, r.Err = w.storage.Load(ctx, "default", c.Key)
		r.Found = r.Record.Version > 0
	case c.Op == placement.Store && c.Record.PID != "":
		r.Err = w.write(lateCall{op: c.Op, record: c.Record})
	default:
		h.command, h.begun = &c, w.now
		return
	}
	h.run(h.core.Finished(c, r, h.moment()))
}

func (h *placeHost) about(key string, r lock.Request) lock.Request {
	r.Tenant, r.Owner, r.Key = "default", h.name, key
	return r
}

// members reads who is a member, as the product does.
func (w *places) members() (members []placement.Host, err error) {
	page, err := w.locks.List(context.Background(), "default", "members/", lock.MaxList)
	for _, l := range page {
		m := placement.Host{Member: placement.Member{Authority: strings.TrimPrefix(l.Key, "members/"), Token: l.Token}}
		if l.Note != "" {
			m.Kinds = []string{l.Note}
		}
		members = append(members, m)
	}
	return members, err
}

// write is a Store or a Remove, as it arrives.
func (w *places) write(c lateCall) error {
	ctx := context.Background()
	if c.op == placement.Remove {
		err := w.storage.Remove(ctx, "default", actor, c.record, c.keep)
		if now, _ := w.storage.Load(ctx, "default", actor); w.off == tokenKept && now.Owner.Authority == "" {
			w.erase()
		}
		return err
	}
	if w.off == newerOnly {
		w.erase()
	}
	before, _ := w.storage.Load(ctx, "default", actor)
	err := w.storage.Store(ctx, "default", actor, c.record)
	if err == nil && before.Token != c.record.Token {
		if c.record.Token < w.reserved {
			w.fault = fmt.Sprintf("token %d is on record after token %d", c.record.Token, w.reserved)
		}
		w.reserved = max(w.reserved, c.record.Token)
	}
	return err
}

func (w *places) erase() {
	key := "activation/default/" + actor.String()
	if _, err := w.records.Change(context.Background(), record.Ask{Keys: []string{key}}, func(record.View) ([]record.Write, error) {
		return []record.Write{{Key: key}}, nil
	}); err != nil {
		panic(err)
	}
}

// The moves of a world of placement. passes is one of them.
const (
	resolves int8 = iota + 40
	looksDue
	isCarriedOut
	answerIsLost
	comesLate // it is given up
	storeDecides
	hearsOfIt
	neverHears
	asksHowLong
	patienceEnds
	processDies
	processGoes
	processComes
	hostStops
	hostCrashes
	lateComes // who: the call
)

var placeMoves = map[int8]string{
	passes: "2 s pass", resolves: "%s is asked for the actor", looksDue: "%s does what is due", isCarriedOut: "%s of %s is carried out",
	answerIsLost: "%s of %s is carried out, and the answer is lost", comesLate: "%s of %s is late", storeDecides: "the store decides on the %s of %s",
	hearsOfIt: "%s hears of its membership", neverHears: "%s hears nothing of its membership", asksHowLong: "the process of %s asks how long it may rely on the actor",
	patienceEnds: "%s waits no longer for its process", processDies: "the process of %s dies", processGoes: "%s has no process for the kind any more",
	processComes: "%s has a process for the kind", hostStops: "%s stops", hostCrashes: "%s crashes, and starts again", lateComes: "late comes %s of %s",
}

func (w *places) moves(all []move) []move {
	if w.fault != "" {
		return all
	}
	add := func(does bool, kind int8, who int) {
		if does && !slices.Contains(w.without, kind) {
			all = append(all, move{kind, int8(who), noClock})
		}
	}
	may := w.accidents < w.most
	add(w.now < w.ticks*placeTick, passes, 0)
	for i, h := range w.hosts {
		add(!h.core.Stopping() && (w.asked || w.apart || i == 0), resolves, i) // the first is host 0: they are equal
		add(h.core.Due() <= ms(w.now), looksDue, i)
		add(h.asking != nil && h.answer == nil, storeDecides, i)
		add(h.asking != nil && h.answer != nil, hearsOfIt, i)
		add(may && h.asking != nil, neverHears, i)
		add(h.runs != 0, asksHowLong, i)
		add(may && h.runs != 0, processDies, i)
		add(may && w.kinds && h.serves, processGoes, i)
		add(w.kinds && !h.serves, processComes, i)
		add(may && !h.core.Stopping(), hostStops, i)
		add(may, hostCrashes, i)
		if c := h.command; c != nil {
			add(true, isCarriedOut, i)
			stores := c.Op == placement.Store || c.Op == placement.Remove
			add(may && stores, answerIsLost, i)
			add(may && len(w.late) == 0 && (stores || c.Op == placement.Ensure && w.now-h.begun >= patience), comesLate, i)
			add(c.Op == placement.Passivate && (w.now-h.begun >= patience || w.off == patienceKept), patienceEnds, i)
		}
	}
	for i := range w.late {
		add(true, lateComes, i)
	}
	return all
}

func (w *places) text(m move) string {
	text := placeMoves[m.kind]
	switch m.kind {
	case passes:
		return text
	case lateComes:
		c := w.late[m.who]
		return fmt.Sprintf(text, called(c.op, c.record), w.hosts[c.host].name)
	case isCarriedOut, answerIsLost, comesLate:
		h := w.hosts[m.who]
		return fmt.Sprintf(text, called(h.command.Op, h.command.Record), h.name)
	case storeDecides:
		h := w.hosts[m.who]
		return fmt.Sprintf(text, h.asking.Op, h.name)
	}
	return fmt.Sprintf(text, w.hosts[m.who].name)
}

func called(op placement.Op, r placement.Record) string {
	return fmt.Sprintf("the %s of token %d", op, r.Token)
}
