package chaos

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// What the checker finds.
const (
	roomsTwoOwners  = "the store took writes of two owners"
	roomsTwoLive    = "a room had two live activations"
	roomsNumbers    = "version and token of a room did not rise together"
	roomsLost       = "a message was lost"
	roomsDisordered = "a message came before one that had been answered when it was sent"
	roomsFault      = "something else went wrong"
)

// roomGivenUp is how long a daemon waits for a process's answer. A frozen process finds its
// message when it goes on.
const roomGivenUp = 5 * time.Second

// roomResult is what the checker found.
type roomResult struct {
	findings
	accepted      int // writes
	refused       int // requests, by their tokens
	moved         int // activations that follow another of the room
	unaware       int // of those, how many began before the other's process knew
	acknowledged  int // messages
	activationsOf map[string][]roomActivation
}

// check says what must not be.
func (r roomRecord) check() roomResult {
	res := roomResult{findings: findings{count: map[string]int{}}, activationsOf: map[string][]roomActivation{}}
	for _, a := range r.activations {
		res.activationsOf[a.room] = append(res.activationsOf[a.room], a)
	}
	r.checkStore(&res)
	for _, room := range slices.Sorted(maps.Keys(res.activationsOf)) {
		r.checkActivations(&res, room, res.activationsOf[room])
	}
	r.checkMessages(&res)
	for _, f := range r.faults {
		res.violates(roomsFault, "%s", f)
	}
	res.summarise()
	return res
}

// checkStore: an accepted token of a room never goes back to a lower one, and each token belongs
// to one activation.
func (r roomRecord) checkStore(res *roomResult) {
	newest := map[string]storeRequest{}
	for _, s := range r.store {
		if !s.Accepted {
			res.refused++
			continue
		}
		if s.Put {
			res.accepted++
		}
		room := s.Key[1:]
		last := newest[room]
		switch {
		case s.Token < last.Token:
			res.violates(roomsTwoOwners, "room %s: token %d of %s was accepted after token %d of %s", room, s.Token, s.Writer, last.Token, last.Writer)
		case s.Token == last.Token && s.Writer != last.Writer:
			res.violates(roomsTwoOwners, "room %s: token %d was accepted from %s and from %s", room, s.Token, last.Writer, s.Writer)
		case s.Token > last.Token && !slices.ContainsFunc(res.activationsOf[room], func(a roomActivation) bool { return a.token == s.Token && a.writer == s.Writer }):
			res.violates(roomsTwoOwners, "room %s: token %d was accepted from %s, which has no activation of it", room, s.Token, s.Writer)
		}
		newest[room] = s
	}
}

// checkActivations: by their tokens, each begins when the one before is over, and no process
// relies on one when the next has begun.
func (r roomRecord) checkActivations(res *roomResult, room string, all []roomActivation) {
	slices.SortFunc(all, func(a, b roomActivation) int { return cmp.Compare(a.token, b.token) })
	for i, next := range all[1:] {
		res.moved++
		for _, a := range all[:i+1] {
			if late := slices.IndexFunc(a.relied, func(at int64) bool { return at >= next.begun }); late >= 0 {
				res.violates(roomsTwoLive, "room %s: %s relied on token %d, %v after %s had begun with token %d", room, a.writer, a.token,
					time.Duration(a.relied[late]-next.begun).Round(time.Millisecond), next.writer, next.token)
			}
		}
		a := all[i]
		switch {
		case a.token == next.token:
			res.violates(roomsTwoLive, "room %s: token %d was given to %s and to %s", room, a.token, a.writer, next.writer)
		case a.version >= next.version:
			res.violates(roomsNumbers, "room %s: version %d has token %d, and version %d token %d", room, a.version, a.token, next.version, next.token)
		case a.ended != 0 && a.ended <= next.begun:
		case r.unaware(a):
			// No one could tell its process, which can only find out by asking: its writes are
			// judged above.
			res.unaware++
		case a.ended == 0:
			res.violates(roomsTwoLive, "room %s: %s never ended its activation of token %d, and %s began with token %d", room, a.writer, a.token, next.writer, next.token)
		default:
			res.violates(roomsTwoLive, "room %s: %s ended its activation of token %d %v after %s had begun with token %d", room, a.writer, a.token,
				time.Duration(a.ended-next.begun).Round(time.Millisecond), next.writer, next.token)
		}
	}
}

// unaware reports whether the process of an activation could not be told of its
// end in time.
func (r roomRecord) unaware(a roomActivation) bool {
	return slices.ContainsFunc(r.away, func(w roomAway) bool {
		meets := a.begun-int64(roomGivenUp) <= w.until && (a.ended == 0 || w.from <= a.ended)
		return w.host == a.host && meets && (w.frozen || !a.told && !r.soon)
	})
}

// checkMessages: each answered message is there, once, and in an order that the senders can have
// seen.
func (r roomRecord) checkMessages(res *roomResult) {
	sent := make([]map[string]roomMessage, len(r.kept)) // by room and text
	for _, m := range r.messages {
		if sent[m.room] == nil {
			sent[m.room] = map[string]roomMessage{}
		}
		sent[m.room][m.text] = m
		if m.ok {
			res.acknowledged++
		}
	}
	for room, texts := range r.kept {
		newest := int64(0) // when any of those so far was sent
		for _, text := range texts {
			m, known := sent[room][text]
			switch {
			case !known:
				res.violates(roomsFault, "room %d has the message %q, which was not sent to it, or has it twice", room, text)
			case m.ok && m.answered < newest:
				res.violates(roomsDisordered, "room %d: %q", room, text)
			}
			delete(sent[room], text)
			newest = max(newest, m.sent)
		}
		for text, m := range sent[room] {
			if m.ok {
				res.violates(roomsLost, "room %d: %q, which was answered", room, text)
			}
		}
	}
}
