package kazahanatest

import (
	"fmt"
	"maps"
	"regexp"
	"time"

	kazahana "github.com/kazahana/kazahana/clients/go"
)

// The low bits of the default layout.
const (
	sequenceBits = 8
	lowBits      = 22
	fallbackBit  = 1 << (lowBits - 1)
	externalLen  = 11
)

var layout = kazahana.DefaultLayout()

// query is a request that is being answered. The Fake is locked. A method that refuses it
// panics with the error: see answer.
type query struct {
	*Fake
	Request
}

var methods = map[string]func(query) any{
	"NextID":             query.nextID,
	"NextIDs":            query.nextIDs,
	"Inspect":            query.inspect,
	"Bounds":             query.bounds,
	"ToExternal":         func(q query) any { return q.codec.Encode(q.id()) },
	"ToInternal":         query.toInternal,
	"UUID":               query.uuid,
	"Ping":               func(query) any { return "pong" },
	"Status":             query.status,
	"Sequence.Next":      func(q query) any { return q.values(1)[0] },
	"Sequence.NextBatch": func(q query) any { return q.values(q.count(1)) },
	"Lock.Acquire":       query.lockAcquire,
	"Lock.Watch":         func(q query) any { return q.held().answer },
	"Lock.Get":           query.lockGet,
	"Lock.Renew":         func(q query) any { return q.held().answer },
	"Lock.Release":       func(q query) any { return q.held().end("RELEASED") },
}

// answer calls a method, and returns the error that it panics with.
func (q query) answer(method func(query) any) (result any, err error) {
	defer func() {
		if refusal := recover(); refusal != nil {
			err = refusal.(*kazahana.Error)
		}
	}()
	return method(q), nil
}

// must returns the results of the client's own functions, and refuses where they do.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func invalid(format string, args ...any) error {
	return refuse(kazahana.ErrInvalidParams, format, args...)
}

func refuse(code kazahana.Code, format string, args ...any) *kazahana.Error {
	return &kazahana.Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// param returns a parameter, which must be of the type.
func param[T any](q query, i int, what string) T {
	if i < len(q.Params) {
		if v, ok := q.Params[i].(T); ok {
			return v
		}
	}
	panic(invalid("parameter %d must be %s", i+1, what))
}

func (q query) integer(i int) int64 { return param[int64](q, i, "an integer") }
func (q query) text(i int) string   { return param[string](q, i, "a string") }

func (q query) count(i int) int {
	n := q.integer(i)
	if n < 1 || n > kazahana.MaxBatch {
		panic(invalid("a count of %d is out of range: 1 to %d", n, kazahana.MaxBatch))
	}
	return int(n)
}

// numeral matches a text that can be no external ID, unless it has the length of one.
var numeral = regexp.MustCompile("^([0-9]+$|0[xX])")

// id is the first parameter: an integer, or a text that is decimal, hexadecimal or external.
func (q query) id() kazahana.ID {
	text, ok := param[any](q, 0, "an ID").(string)
	if !ok {
		return must(layout.Inspect(kazahana.ID(q.integer(0)))).ID // or it is negative
	}
	id, err := kazahana.ParseID(text)
	if err != nil && (len(text) == externalLen || !numeral.MatchString(text)) {
		id, err = q.codec.Decode(text)
	}
	return must(id, err)
}

func (q query) nextID() any {
	id := q.newID()
	switch q.Options["format"] {
	case nil, "int":
		return int64(id)
	case "string":
		return id.String()
	case "external":
		return q.codec.Encode(id)
	}
	panic(invalid("the formats are int, string and external"))
}

// newID returns the ID after the last one: of the clock's time, or of the first later
// millisecond with an ID left.
func (q query) newID() kazahana.ID {
	if now := q.now.Sub(layout.Epoch).Milliseconds(); now > q.lastMS {
		q.lastMS, q.given = now, 0
	}
	if q.given == 1<<sequenceBits {
		q.lastMS, q.given = q.lastMS+1, 0
	}
	id := q.lastMS<<lowBits | MachineID<<sequenceBits | q.given
	q.given++
	if q.fallback {
		id |= fallbackBit
	}
	return kazahana.ID(id)
}

func (q query) nextIDs() any {
	ids := make([]any, q.count(0))
	for i := range ids {
		ids[i] = q.nextID()
	}
	return ids
}

func (q query) inspect() any {
	in := must(layout.Inspect(q.id()))
	return map[string]any{
		"id": int64(in.ID), "external": q.codec.Encode(in.ID), "timestamp_ms": in.Time.UnixMilli(), "time": rfc3339(in.Time),
		"machine_id": in.MachineID, "sequence": in.Sequence, "kind": map[bool]string{false: "regular", true: "fallback"}[in.Fallback],
		"bit_id": layout.BitID, "bit_seq": layout.BitSeq, "epoch_ms": layout.Epoch.UnixMilli(),
	}
}

func (q query) bounds() any {
	smallest, largest, err := layout.Bounds(time.UnixMilli(q.integer(0)), time.UnixMilli(q.integer(1)))
	return []any{int64(must(smallest, err)), int64(largest)}
}

func (q query) toInternal() any {
	if latest, ok := q.Options["latest_ms"].(int64); ok {
		return int64(must(q.codec.DecodeBefore(q.text(0), layout, time.UnixMilli(latest))))
	}
	return int64(must(q.codec.Decode(q.text(0))))
}

func (q query) uuid() any {
	version := int64(7)
	if len(q.Params) > 0 {
		version = q.integer(0)
	}
	if version != 4 && version != 7 {
		panic(invalid("UUID version %d: there are 4 and 7", version))
	}
	q.uuids++
	return fmt.Sprintf("00000000-0000-%d000-8000-%012x", version, q.uuids)
}

func (q query) status() any {
	mode := map[bool]string{false: "regular", true: "fallback_random"}[q.fallback]
	return map[string]any{
		"version": "fake", "features": []string{"ids", "external", "uuid", "regular_only", "locks", "sequences"},
		"provider": "memory:", "scope": "unverified", "mode": mode, "clock_ms": q.now.UnixMilli(),
		"services": []any{map[string]any{"service": "default", "mode": mode}},
	}
}

// values takes the next values of a sequence, and gives the same ones to a request that
// comes again.
func (q query) values(n int) []int64 {
	key, id := q.text(0), q.Options["request_id"]
	request := fmt.Sprint(key, "\x00", id)
	if values, ok := q.requests[request]; ok && id != nil {
		return values
	}
	values := make([]int64, n)
	for i := range values {
		q.sequences[key]++
		values[i] = q.sequences[key]
	}
	q.requests[request] = values
	return values
}

func (q query) lockAcquire() any {
	key := q.text(0)
	if held := q.locks[key]; held.active() {
		e := refuse(kazahana.ErrLockHeld, "somebody else holds the lock")
		e.Details = map[string]string{"retry_after_ms": fmt.Sprint(held.answer["expires_in_ms"]), "owner": fmt.Sprint(held.answer["owner_id"])}
		panic(e)
	}
	ttl, ok := q.Options["ttl_ms"].(int64)
	if !ok {
		ttl = kazahana.DefaultLockTTL.Milliseconds()
	}
	q.tokens++
	end := q.now.Add(time.Duration(ttl) * time.Millisecond)
	q.locks[key] = &lock{q.Conn, map[string]any{
		"tenant_id": "default", "lock_key": key, "lease_id": fmt.Sprintf("%032x", q.tokens), "owner_id": "fake",
		"fencing_token": q.tokens, "state": "ACTIVE", "acquired_at": rfc3339(q.now), "expires_at": rfc3339(end), "expires_in_ms": ttl,
	}}
	return q.locks[key].answer
}

func (q query) lockGet() any {
	if l := q.locks[q.text(0)]; l != nil {
		return l.answer
	}
	panic(refuse(kazahana.ErrLockNotFound, "nobody has held the lock lately"))
}

// held is the lock, if it is held by the lease that the options may name.
func (q query) held() *lock {
	l := q.locks[q.text(0)]
	if id := q.Options["lease_id"]; !l.active() || id != nil && id != l.answer["lease_id"] {
		panic(refuse(kazahana.ErrLockNotOwned, "the lock is not held by this lease"))
	}
	return l
}

func (l *lock) active() bool { return l != nil && l.answer["state"] == "ACTIVE" }

// end ends a lock, and returns what there is to say about it.
func (l *lock) end(state string) map[string]any {
	l.answer = maps.Clone(l.answer)
	l.answer["state"], l.answer["expires_in_ms"] = state, 0
	return l.answer
}

func rfc3339(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }
