package redis

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/kazahana/kazahana/internal/conn/redisconn"
	"github.com/kazahana/kazahana/internal/record"
)

// batch has the arguments of a commit, and the records afterwards.
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

// The purposes of scripts.
const (
	changes = iota
	looks   // nothing is carried out
	frees   // nothing is given to anyone, so the server's life is not compared
)

func (c *change) newBatch(mode byte) *batch {
	b := &c.batch
	*b = batch{raised: noFloor, mode: mode}
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
	b := c.newBatch(frees)
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
			var text []byte
			after, text = encode(w, c.nonce)
			b.texts = append(b.texts, text)
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
	if len(writes) == 0 || c.cfg.MinReplicas > 0 && !c.onlyEnds() {
		b.mode = changes
	}
	return b
}

// expires reports whether Redis deletes the record by itself: by its own clock, and not by a
// configured one.
func (s *Store) expires(k known) bool { return k.vanishes() && s.cfg.NowMS == nil }

// entries makes the commands that change a record's entries in the sorted sets.
func (c *change) entries(b *batch, key string, before, after known) {
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
	if c.ask.Fresh {
		from = c.nowMS // the commit is not before it
	}
	words := make([]any, 0, headWords+1+2*len(c.seen)+len(b.texts)+len(b.commands)+1)
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
	head = append(append(head, c.life.stamp...), b.mode)
	if before != forever || from != 0 || floor != noFloor || b.raised != noFloor {
		head = appendMoment(appendMoment(append(head, 1), before), from)
		head = binary.BigEndian.AppendUint64(head, uint64(floor))
		head = binary.BigEndian.AppendUint64(head, uint64(b.raised))
	} else {
		head = append(head, 0)
	}
	words = append(words, append(head, b.codes...))
	for _, k := range c.seen {
		words = append(words, k.tag)
	}
	return append(append(words, b.texts...), b.commands...)
}

// answer is the script's answer.
type answer struct {
	done        bool
	unconfirmed error // done, but not by replicas
	changed     bool  // the store has another life, and nothing was done
	lost        bool  // an earlier try may have been carried out
	nowMS       int64
	present     []any // state, records
}

// onlyEnds: what frees in this area ends leases. A lost end leaves a machine ID taken for
// longer, so no replica need confirm it. And it is sent once, as a release of a lease is.
func (s *Store) onlyEnds() bool { return s.area.FollowsClock }

// send runs the script, and waits for replicas where it wrote.
func (c *change) send(ctx context.Context, b *batch) (answer, error) {
	if c.cfg.MinReplicas > 0 && b.mode != looks && len(b.codes) == 0 {
		b.command("SET", c.touchKey(), 1)
	}
	l, s := c.life, c.Store
	words := c.words(b)
	lost := false
	try := func(ctx context.Context, conn redis.Cmdable) (answer, error) {
		sent := s.elapsed()
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
	times := redisconn.Repeatable
	if b.mode == frees && s.onlyEnds() {
		times = redisconn.Once
	}
	if c.cfg.MinReplicas == 0 || b.mode == frees {
		return redisconn.RunAnywhere(ctx, s.client, times, try)
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

// parse reads the script's answer.
func (s *Store) parse(got any) (a answer, err error) {
	switch got := got.(type) {
	case int64:
		return answer{done: true, nowMS: got}, nil
	case []any:
		word, _ := got[0].(string)
		switch {
		case word == "present" && len(got) == 4:
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

// understand takes the script's answer for the present.
func (c *change) understand(a answer) error {
	text, _ := a.present[0].(string)
	records, _ := a.present[1].([]any)
	st, ok := head(text)
	if !ok || len(records) != len(c.ask.Keys) {
		return fmt.Errorf("%s: the answer of a script cannot be read", c.place)
	}
	for i, key := range c.ask.Keys {
		text, _ := records[i].(string)
		k, err := parse(key, []byte(text))
		if err != nil {
			return fmt.Errorf("%s: %w", c.place, err)
		}
		c.seen[i] = k
	}
	c.nowMS, c.floor = a.nowMS, st.floor
	c.life.seenFloor.Store(st.floor)
	c.sure, c.confirmed = true, false
	return nil
}

// committed takes the writes for known.
func (c *change) committed(b *batch, atMS int64) {
	for _, w := range b.after {
		if !w.known.absent() {
			w.known = w.known.committed(atMS)
		}
		c.seen[w.index] = w.known
	}
	if b.raised != noFloor {
		c.life.seenFloor.Store(b.raised)
	}
}
