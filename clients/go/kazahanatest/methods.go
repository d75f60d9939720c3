package kazahanatest

import (
	"errors"
	"fmt"
	"maps"
	"time"

	kazahana "github.com/kazahana/kazahana/clients/go"
)

// The low bits of the default layout.
const (
	sequenceBits = 8
	lowBits      = 22
	low          = MachineID << sequenceBits
	fallbackBit  = 1 << (lowBits - 1)
)

var layout = kazahana.DefaultLayout()

// query is a request that is being answered. The Fake is locked.
type query struct {
	*Fake
	Request
}

var methods = map[string]func(query) (any, error){
	"NextID":             query.nextID,
	"NextIDs":            query.nextIDs,
	"Inspect":            query.inspect,
	"Bounds":             query.bounds,
	"ToExternal":         query.toExternal,
	"ToInternal":         query.toInternal,
	"UUID":               query.uuid,
	"Ping":               func(query) (any, error) { return "pong", nil },
	"Status":             query.status,
	"Sequence.Next":      query.sequenceNext,
	"Sequence.NextBatch": query.sequenceNextBatch,
	"Lock.Acquire":       query.lockAcquire,
	"Lock.Watch":         query.lockGet,
	"Lock.Get":           query.lockGet,
	"Lock.Renew":         query.lockGet,
	"Lock.Release":       query.lockRelease,
}

// param returns a parameter, which must be of the type.
func param[T any](q query, i int, what string) (v T, err error) {
	ok := false
	if i < len(q.Params) {
		v, ok = q.Params[i].(T)
	}
	if !ok {
		err = invalid("parameter %d must be %s", i+1, what)
	}
	return v, err
}

func (q query) integer(i int) (int64, error) { return param[int64](q, i, "an integer") }
func (q query) text(i int) (string, error)   { return param[string](q, i, "a string") }

func (q query) count(i int) (int, error) {
	n, err := q.integer(i)
	if err == nil && (n < 1 || n > kazahana.MaxBatch) {
		err = invalid("a count of %d is out of range: 1 to %d", n, kazahana.MaxBatch)
	}
	return int(n), err
}

func (q query) nextID() (any, error) {
	id := q.after()
	q.last = id
	switch q.Options["format"] {
	case "string":
		return id.String(), nil
	case "external":
		return q.codec.Encode(id), nil
	}
	return int64(id), nil
}

// after is the ID after the last one.
func (q query) after() kazahana.ID {
	var base kazahana.ID = low
	if q.fallback {
		base |= fallbackBit
	}
	first := kazahana.ID(q.now.Sub(layout.Epoch).Milliseconds())<<lowBits | base
	if first > q.last {
		return first
	}
	again := q.last>>lowBits<<lowBits | base // in the last ID's millisecond
	next := q.last + 1
	switch {
	case next>>sequenceBits == again>>sequenceBits:
		return next
	case again > q.last:
		return again
	}
	return again + 1<<lowBits
}

func (q query) nextIDs() (any, error) {
	n, err := q.count(0)
	if err != nil {
		return nil, err
	}
	ids := make([]any, n)
	for i := range ids {
		ids[i], _ = q.nextID()
	}
	return ids, nil
}

func (q query) inspect() (any, error) {
	id, err := q.integer(0)
	if err != nil {
		return nil, err
	}
	in, err := layout.Inspect(kazahana.ID(id))
	if err != nil {
		return nil, err
	}
	kind := "regular"
	if in.Fallback {
		kind = "fallback"
	}
	return map[string]any{
		"id": id, "external": q.codec.Encode(in.ID), "timestamp_ms": in.Time.UnixMilli(), "time": rfc3339(in.Time),
		"machine_id": in.MachineID, "sequence": in.Sequence, "kind": kind,
		"bit_id": layout.BitID, "bit_seq": layout.BitSeq, "epoch_ms": layout.Epoch.UnixMilli(),
	}, nil
}

func (q query) bounds() (any, error) {
	from, err1 := q.integer(0)
	to, err2 := q.integer(1)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	smallest, largest, err := layout.Bounds(time.UnixMilli(from), time.UnixMilli(to))
	return []int64{int64(smallest), int64(largest)}, err
}

func (q query) toExternal() (any, error) {
	id, err := q.integer(0)
	return q.codec.Encode(kazahana.ID(id)), err
}

func (q query) toInternal() (any, error) {
	text, err := q.text(0)
	if err != nil {
		return nil, err
	}
	id, err := q.codec.Decode(text)
	if latest, ok := q.Options["latest_ms"].(int64); ok && err == nil && id.Time(layout).UnixMilli() > latest {
		err = refuse(kazahana.ErrInvalidExternalID, "it would have been made at %s", rfc3339(id.Time(layout)))
	}
	return int64(id), err
}

func (q query) uuid() (any, error) {
	version := int64(7)
	if len(q.Params) > 0 {
		version, _ = q.integer(0)
	}
	if version != 4 && version != 7 {
		return nil, invalid("UUID version %d: there are 4 and 7", version)
	}
	q.uuids++
	return fmt.Sprintf("00000000-0000-%d000-8000-%012x", version, q.uuids), nil
}

func (q query) status() (any, error) {
	mode := "regular"
	if q.fallback {
		mode = "fallback_random"
	}
	return map[string]any{
		"version": "fake", "features": []string{"ids", "external", "uuid", "regular_only", "locks", "sequences"},
		"provider": "memory:", "scope": "unverified", "mode": mode, "clock_ms": q.now.UnixMilli(),
		"services": []any{map[string]any{"service": "default", "mode": mode}},
	}, nil
}

func (q query) sequenceNext() (any, error) {
	values, err := q.values(1)
	if err != nil {
		return nil, err
	}
	return values[0], nil
}

func (q query) sequenceNextBatch() (any, error) {
	n, err := q.count(1)
	if err != nil {
		return nil, err
	}
	return q.values(n)
}

func (q query) values(n int) ([]int64, error) {
	key, err := q.text(0)
	if err != nil {
		return nil, err
	}
	request := fmt.Sprint(key, "\x00", q.Options["request_id"])
	if q.Options["request_id"] != nil {
		if values, ok := q.requests[request]; ok {
			return values, nil
		}
	}
	values := make([]int64, n)
	for i := range values {
		q.sequences[key]++
		values[i] = q.sequences[key]
	}
	q.requests[request] = values
	return values, nil
}

func (q query) lockAcquire() (any, error) {
	key, err := q.text(0)
	if err != nil {
		return nil, err
	}
	if held := q.locks[key]; held != nil {
		e := refuse(kazahana.ErrLockHeld, "somebody else holds the lock")
		e.Details = map[string]string{"retry_after_ms": fmt.Sprint(held.answer["expires_in_ms"]), "owner": fmt.Sprint(held.answer["owner_id"])}
		return nil, e
	}
	ttl, ok := q.Options["ttl_ms"].(int64)
	if !ok {
		ttl = kazahana.DefaultLockTTL.Milliseconds()
	}
	q.tokens++
	end := q.now.Add(time.Duration(ttl) * time.Millisecond)
	q.locks[key] = &lock{q.Conn, map[string]any{
		"tenant_id": "default", "lock_key": key, "lease_id": fmt.Sprintf("lease-%d", q.tokens), "owner_id": "fake",
		"fencing_token": q.tokens, "state": "ACTIVE", "acquired_at": rfc3339(q.now), "expires_at": rfc3339(end), "expires_in_ms": ttl,
	}}
	return maps.Clone(q.locks[key].answer), nil
}

// lockGet is the lock, if it is held by the lease that the options may name.
func (q query) lockGet() (any, error) {
	key, err := q.text(0)
	if err != nil {
		return nil, err
	}
	l := q.locks[key]
	if l == nil {
		return nil, refuse(kazahana.ErrLockNotFound, "nobody has held the lock lately")
	}
	if id := q.Options["lease_id"]; id != nil && id != l.answer["lease_id"] {
		return nil, refuse(kazahana.ErrLockNotOwned, "the lock is held by another lease")
	}
	return maps.Clone(l.answer), nil
}

func (q query) lockRelease() (any, error) {
	answer, err := q.lockGet()
	if err != nil {
		return nil, err
	}
	key, _ := q.text(0)
	delete(q.locks, key)
	released := answer.(map[string]any)
	released["state"], released["expires_in_ms"] = "RELEASED", 0
	return released, nil
}

func rfc3339(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }
