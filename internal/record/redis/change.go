package redis

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	redisconn "github.com/kazahana/kazahana/internal/conn/redis"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/turns"
)

const (
	// maxLooks bounds how often a server may change while it is looked at.
	maxLooks = 10
	// forever is later than every moment.
	forever = 1<<(8*momentBytes) - 1
	// noFloor is none that is compared, or set.
	noFloor = -1
)

// change is one call of Change.
type change struct {
	*Store
	ask   record.Ask
	nonce nonce
	life  *life // nil before the server is known
	// What was seen: the records of the ask, its ranges, the time, and the floor.
	seen   []known
	one    [1]known // has room for seen
	ranges [][]record.Entry
	nowMS  int64
	floor  int64
	// sure: that was the present during the call. confirmed: replicas have it.
	sure, confirmed bool
	extra           [][]any // commands of the store's own, carried out with the writes
}

// Change implements record.Store.
func (s *Store) Change(ctx context.Context, ask record.Ask, rule record.Rule) (atMS int64, err error) {
	if err := cmp.Or(ask.Validate(), ctx.Err()); err != nil {
		return 0, err
	}
	held, err := s.turns.Take(ctx, ask.Keys)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", s.place, err)
	}
	c := s.newChange(ask)
	for _, key := range ask.Keys {
		c.seen = append(c.seen, held.Known(key))
	}
	atMS, err = turns.Run(ctx, held, c, s.place, ask, rule)
	for i, key := range ask.Keys {
		if k := c.seen[i]; k.absent() {
			held.Forget(key)
		} else {
			held.Remember(key, k)
		}
	}
	held.Give()
	s.sweepNow()
	return atMS, err
}

func (s *Store) newChange(ask record.Ask) *change {
	c := &change{Store: s, ask: ask, life: s.life.Load(), nowMS: s.estimate(), floor: s.floor.Load()}
	c.seen = c.one[:0]
	binary.NativeEndian.PutUint64(c.nonce[:], rand.Uint64())
	return c
}

// View implements turns.Change. While there is a fence, rules compare times: they get those of
// the server.
func (c *change) View() (v record.View, ok bool) {
	if c.life == nil || len(c.ranges) < len(c.ask.Ranges) || !c.sure && !c.life.Trusted {
		return record.View{}, false
	}
	v = record.View{
		Records: make(map[string]record.Record, len(c.seen)), Ranges: c.ranges,
		NowMS: c.nowMS, Floor: c.floor, Life: c.life.life(), Fence: c.life.fence(c.limits, c.nowMS),
	}
	for i, k := range c.seen {
		if !k.absent() {
			v.Records[c.ask.Keys[i]] = k.record(c.nowMS)
		}
	}
	return v, true
}

// Settled implements turns.Change. A repetition of what was carried out before is
// answered when replicas know of that.
func (c *change) Settled(refused bool) bool {
	return c.sure && (refused || c.confirmed || c.cfg.MinReplicas == 0)
}

// Confirm implements turns.Change.
func (c *change) Confirm(ctx context.Context) error {
	if !c.sure {
		return c.look(ctx)
	}
	_, outcome, err := c.Commit(ctx, nil)
	c.confirmed = outcome == turns.Done
	return err
}

// look sees the present.
func (c *change) look(ctx context.Context) error {
	for range maxLooks {
		if c.life == nil {
			l, err := redisconn.RunAnywhere(ctx, c.client, redisconn.Repeatable, c.hello)
			if err != nil {
				return err
			}
			c.life = l
		}
		a, err := c.send(ctx, newBatch(looks))
		if err != nil {
			return err
		}
		if !a.changed {
			return c.understand(a)
		}
		c.life = nil
	}
	return fmt.Errorf("%s: %w", c.place, errChanged)
}

// Commit implements turns.Change.
func (c *change) Commit(ctx context.Context, writes []record.Write) (atMS int64, o turns.Outcome, err error) {
	if same, err := c.lengthen(ctx, writes); err != nil || !same {
		return 0, turns.Old, err
	}
	o = turns.Old
	if c.sure {
		o = turns.Raced
	}
	b := c.prepare(writes)
	a, err := c.send(ctx, b)
	switch {
	case err != nil:
		c.seen, c.sure = make([]known, len(c.seen)), false
		return 0, o, err
	case a.done:
		c.committed(b, a.nowMS)
		return a.nowMS, turns.Done, a.unconfirmed
	case a.changed:
		c.life, o = nil, turns.Old
		err = c.look(ctx)
	default:
		err = c.understand(a)
	}
	if a.lost {
		return c.search(ctx, err)
	}
	if err != nil {
		return 0, o, err
	}
	if o == turns.Raced {
		c.sure = false // by the next try, after a pause
	}
	return 0, o, nil
}

// search finds out whether an earlier try, whose answer was lost, was carried out. err says
// why the present is not seen. Without a lost answer nothing may be looked for: short
// versions of two calls can be the same.
func (c *change) search(ctx context.Context, err error) (atMS int64, o turns.Outcome, _ error) {
	if err != nil { // it is not wrapped: it may say that nothing was sent
		return 0, turns.Old, fmt.Errorf("%s: record %q: %w: %v", c.place, c.ask.Keys, record.ErrOutrun, err)
	}
	if i := slices.IndexFunc(c.seen, func(k known) bool { return k.wrote(c.nonce) }); i >= 0 {
		return c.found(ctx, c.seen[i])
	}
	return 0, turns.Old, fmt.Errorf("%s: record %q: %w", c.place, c.ask.Keys, record.ErrOutrun)
}

// found is the end of a change that was carried out by an earlier try, whose answer was
// lost.
func (c *change) found(ctx context.Context, k known) (atMS int64, o turns.Outcome, err error) {
	atMS = c.nowMS
	if k.timed {
		atMS = k.atMS
	}
	if c.cfg.MinReplicas == 0 {
		return atMS, turns.Done, nil
	}
	if c.nonce == (nonce{}) { // it was there a moment ago
		return 0, turns.Raced, fmt.Errorf("%s: record %q: %w", c.place, c.ask.Keys, record.ErrOutrun)
	}
	c.nonce = nonce{}
	_, o, err = c.Commit(ctx, nil)
	if err == nil && o != turns.Done {
		err = fmt.Errorf("%s: record %q: %w", c.place, c.ask.Keys, record.ErrOutrun)
	}
	return atMS, turns.Done, err
}

// lengthen records how long the grants among the writes last, before they are made. It
// reports whether what was seen still counts.
func (c *change) lengthen(ctx context.Context, writes []record.Write) (same bool, err error) {
	var most int64
	for _, w := range writes {
		if w.Grant {
			most = max(most, w.TermMS)
		}
	}
	if most <= c.life.LongestMS {
		return true, nil
	}
	before := c.life.facts
	c.life, err = c.edit(ctx, func(f *facts) { f.LongestMS = max(f.LongestMS, longest(most)) })
	if err != nil {
		return false, err
	}
	before.LongestMS = c.life.LongestMS
	if before == c.life.facts {
		return true, nil
	}
	return false, c.look(ctx)
}

// batch is the arguments of a commit, and what the records are afterwards.
type batch struct {
	codes    []byte // of the writes
	texts    []any  // of the writes that are no deletions
	commands []any
	raised   int64 // the floor; noFloor where it stays
	after    []written
	mode     byte
	room     struct {
		codes    [4]byte
		texts    [4]any
		commands [8]any
		after    [1]written
	}
}

// What a script is for.
const (
	changes = iota
	looks   // nothing is carried out
	frees   // nothing is given to anyone, so the server's life is not compared
)

func newBatch(mode byte) *batch {
	b := &batch{raised: noFloor, mode: mode}
	b.codes, b.texts, b.commands, b.after = b.room.codes[:0], b.room.texts[:0], b.room.commands[:0], b.room.after[:0]
	return b
}

// written is what becomes of a record of the ask.
type written struct {
	index int
	known known
}

func (b *batch) command(words ...any) {
	b.commands = append(append(b.commands, len(words)), words...)
}

const (
	codeDeletes  = 0x80
	codeTimed    = 0x40
	codeVanishes = 0x20
)

// prepare makes the commands of the writes.
func (c *change) prepare(writes []record.Write) *batch {
	b := newBatch(frees)
	for _, w := range writes {
		if !w.Frees {
			b.mode = changes
		}
		i := slices.Index(c.ask.Keys, w.Key)
		before, code, after := c.seen[i], byte(i), known{}
		if w.Value == nil {
			code |= codeDeletes
			if mark := max(w.Mark, before.mark); !before.absent() && mark > c.floor {
				b.raised = max(b.raised, mark)
			}
		} else {
			after = encode(w, c.nonce)
			b.texts = append(b.texts, after.text)
			if after.timed {
				code |= codeTimed
			}
			if c.expires(after) {
				code |= codeVanishes
				b.texts = append(b.texts, after.termMS+after.keepMS)
			}
		}
		b.codes = append(b.codes, code)
		b.after = append(b.after, written{i, after})
		c.entries(b, w.Key, before, after)
		if w.Tell || after.absent() && before.told {
			b.command("PUBLISH", c.channelOf(w.Key), w.Key)
		}
	}
	for _, words := range c.extra {
		b.command(words...)
	}
	if len(writes) == 0 || c.cfg.MinReplicas > 0 {
		b.mode = changes
	}
	return b
}

// expires reports whether the record is one that Redis deletes by itself: by its own
// clock, and not by one that was set.
func (s *Store) expires(k known) bool { return k.vanishes() && s.cfg.NowMS == nil }

// entries makes the commands that change a record's entries in the sorted sets.
func (c *change) entries(b *batch, key string, before, after known) {
	for _, index := range before.index {
		if !slices.Contains(after.index, index) {
			b.command("ZREM", c.indexKey(), index+"\x00"+key)
		}
	}
	for _, index := range after.index {
		if !slices.Contains(before.index, index) {
			b.command("ZADD", c.indexKey(), 0, index+"\x00"+key)
		}
	}
	if listed := !before.absent() && before.listed; listed != (!after.absent() && after.listed) {
		if listed {
			b.command("ZREM", c.listKey(), key)
		} else {
			b.command("ZADD", c.listKey(), 0, key)
		}
	}
	switch was := before.timed && !c.expires(before); {
	case after.timed && !c.expires(after):
		// An entry that is somewhat late is left alone: the sweep sets it right.
		if keeps, kept := after.termMS+after.keepMS, before.termMS+before.keepMS; !was || keeps < kept/8*7 {
			b.command("DUE", keeps, key)
		}
	case was:
		b.command("ZREM", c.dueKey(), key)
	}
}

// words are the command that runs the script.
func (c *change) words(b *batch) []any {
	before, from, floor := int64(forever), int64(0), int64(noFloor)
	words := make([]any, 0, headWords+1+2*len(c.seen)+4*len(c.ask.Ranges)+len(b.texts)+len(b.commands)+1)
	words = append(words, "evalsha", c.life.script.Hash(), len(c.seen))
	for i, k := range c.seen {
		words = append(words, c.recordKey(c.ask.Keys[i]))
		if k.absent() || b.raised != noFloor {
			floor = c.floor
		}
		if end := k.endMS(); end != 0 && end <= c.nowMS {
			from = max(from, end)
		} else if end != 0 {
			before = min(before, end)
		}
	}
	head := make([]byte, 0, 64)
	head = append(head, c.life.stamp...)
	head = appendMoment(head, before)
	head = appendMoment(head, from)
	head = binary.BigEndian.AppendUint64(head, uint64(floor))
	head = binary.BigEndian.AppendUint64(head, uint64(b.raised))
	head = append(append(head, byte(len(c.ask.Ranges)), b.mode), b.codes...)
	words = append(words, head)
	for _, k := range c.seen {
		words = append(words, k.tag())
	}
	for i, r := range c.ask.Ranges {
		from, seen := "-", []string(nil)
		if r.From != "" {
			from = "[" + r.From
		}
		if i < len(c.ranges) {
			for _, e := range c.ranges[i] {
				seen = append(seen, e.Index+"\x00"+e.Key)
			}
		}
		words = append(words, from, "("+r.To, r.Limit, strings.Join(seen, "\x00\x00"))
	}
	return append(append(words, b.texts...), b.commands...)
}

// answer is what the script returned.
type answer struct {
	done        bool
	unconfirmed error // done, but not by replicas
	changed     bool  // the store has another life, and nothing was done
	lost        bool  // an earlier try may have been carried out
	nowMS       int64
	present     []any // state, records, ranges
}

// send runs the script, and waits for replicas where it wrote.
func (c *change) send(ctx context.Context, b *batch) (answer, error) {
	if c.cfg.MinReplicas > 0 && b.mode != looks && len(b.codes) == 0 {
		b.command("SET", c.touchKey(), 1)
	}
	l, s := c.life, c.Store
	words := c.words(b)
	lost := false
	try := func(ctx context.Context, conn redis.Cmdable) (answer, error) {
		sent := time.Since(s.opened)
		got, err := s.eval(ctx, conn, l, words)
		var a answer
		if err == nil {
			a, err = s.parse(got)
		} else if !errors.Is(err, errChanged) {
			lost = lost || !redis.HasErrorPrefix(err, "READONLY")
		}
		switch {
		case errors.Is(err, errChanged):
			a.changed, err = true, nil
		case err == nil:
			s.synchronize(a.nowMS, sent)
		}
		a.lost = lost
		return a, err
	}
	if c.cfg.MinReplicas == 0 {
		return redisconn.RunAnywhere(ctx, s.client, redisconn.Repeatable, try)
	}
	return redisconn.Run(ctx, s.client, redisconn.Repeatable, func(ctx context.Context, conn *redis.Conn) (answer, error) {
		a, err := try(ctx, conn)
		if err != nil || !a.done {
			return a, err
		}
		if err = s.client.Confirm(ctx, conn); errors.Is(err, redisconn.ErrUnconfirmed) {
			a.unconfirmed, err = fmt.Errorf("%s: %w: %w", s.place, record.ErrUnconfirmed, err), nil
		}
		lost = lost || err != nil
		return a, err
	})
}

// parse reads what the script returned.
func (s *Store) parse(got any) (a answer, err error) {
	switch got := got.(type) {
	case int64:
		return answer{done: true, nowMS: got}, nil
	case []any:
		word, _ := got[0].(string)
		switch {
		case word == "present" && len(got) == 5:
			a.nowMS, _ = got[1].(int64)
			a.present = got[2:]
			return a, nil
		case word == "life":
			s.looked.Store(int64(-lookEvery)) // look at the server again
			return answer{}, errChanged
		case word == "replicas" && len(got) == 2:
			n, _ := got[1].(int64)
			return answer{}, s.client.TooFewReplicas(n)
		}
	}
	return answer{}, fmt.Errorf("a script gave an answer that this version does not know: %.100q", fmt.Sprint(got))
}

// understand takes what the script returned for the present.
func (c *change) understand(a answer) error {
	text, _ := a.present[0].(string)
	records, _ := a.present[1].([]any)
	spans, _ := a.present[2].([]any)
	st, ok := head(text)
	if !ok || len(records) != len(c.ask.Keys) || len(spans) != len(c.ask.Ranges) {
		return fmt.Errorf("%s: the answer of a script cannot be read", c.place)
	}
	for i, key := range c.ask.Keys {
		text, _ := records[i].(string)
		k, err := parse(key, text)
		if err != nil {
			return fmt.Errorf("%s: %w", c.place, err)
		}
		c.seen[i] = k
	}
	c.ranges = make([][]record.Entry, 0, len(spans))
	for _, span := range spans {
		members, _ := span.([]any)
		var entries []record.Entry
		for _, m := range members {
			text, _ := m.(string)
			index, key, _ := strings.Cut(text, "\x00")
			entries = append(entries, record.Entry{Index: index, Key: key})
		}
		c.ranges = append(c.ranges, entries)
	}
	c.nowMS, c.floor = a.nowMS, st.floor
	c.Store.floor.Store(st.floor)
	c.sure, c.confirmed = true, false
	return nil
}

// committed takes what was written for known.
func (c *change) committed(b *batch, atMS int64) {
	for _, w := range b.after {
		if !w.known.absent() {
			w.known = w.known.committed(atMS)
		}
		c.seen[w.index] = w.known
	}
	if b.raised != noFloor {
		c.Store.floor.Store(b.raised)
	}
}
