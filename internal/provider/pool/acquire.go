package pool

import (
	"errors"
	"fmt"
	"maps"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

// ErrInconsistent: the line contradicts the records. It stops a grant that would
// break the grant rule. A store that keeps its line makes it anew: NewLine.
var ErrInconsistent = errors.New("the index of free machine IDs contradicts the records; nothing is granted")

// Acquire grants what is asked for, or as much as is free. A change that comes with
// no grant is empty.
func Acquire(r Reader, m Moment, t provider.Terms, req provider.AcquireRequest) ([]lease.Lease, Change, error) {
	// A repeated request is no exception: its lease may have been given back since,
	// and granted to another.
	if m.Fence != nil {
		return nil, Change{}, m.Fence
	}
	if err := t.CheckClock(m.NowMS); err != nil {
		return nil, Change{}, err
	}
	p, err := r.Pool()
	if err != nil {
		return nil, Change{}, err
	}
	if err := p.known(t); err != nil {
		return nil, Change{}, err
	}
	if req.RequestID != "" {
		answered, err := r.Answered(req.Service, req.RequestID)
		if err != nil {
			return nil, Change{}, err
		}
		if len(answered) > 0 {
			leases, err := Replay(answered, m.NowMS)
			return leases, Change{}, err
		}
	}
	line := newCanvas(r)
	if !p.Exists {
		line = newLine(EmptyLine(t.Timeline))
	}
	ring := RingOf(t)
	cursor, err := ring.cursor(r, m)
	if err != nil {
		return nil, Change{}, err
	}
	ids, nextMS, err := ring.Choose(line, cursor, t.LeaseCount(req.ThroughputPerMS), m.NowMS)
	if err != nil {
		return nil, Change{}, err
	}
	if len(ids) == 0 && nextMS == 0 {
		return nil, Change{}, fmt.Errorf("%w: it lacks the range %v of pool %q", ErrInconsistent, t.Range(), t.Pool)
	}
	if len(ids) == 0 {
		return nil, Change{}, &provider.FullError{Pool: t.Pool, Slots: t.Range().Count(), NextEndMS: nextMS}
	}
	c := Change{}
	leases, err := c.grant(r, p, line, m, t, req, ids)
	if err != nil {
		return nil, Change{}, err
	}
	return leases, c, nil
}

// Replay is the answer to a request that was granted before: the same leases as
// long as all of them live. A nil record is one that was granted again since.
func Replay(answered []*Record, nowMS int64) ([]lease.Lease, error) {
	var leases []lease.Lease
	for _, r := range answered {
		if r == nil || r.Released || nowMS >= r.Lease.Expired {
			return nil, provider.ErrConflict
		}
		leases = append(leases, r.Lease)
	}
	return leases, nil
}

// grant grants the machine IDs. It does not rely on what chose them: the records
// are asked once more whether they are free.
func (c *Change) grant(r Reader, p Pool, line *canvas, m Moment, t provider.Terms, req provider.AcquireRequest, ids []int64) ([]lease.Lease, error) {
	ring := RingOf(t)
	keys := make([]Key, len(ids))
	for i, id := range ids {
		keys[i] = ring.Key(id)
	}
	taken, err := r.Taken(p.Levels, keys)
	if err != nil {
		return nil, err
	}
	leases := make([]lease.Lease, len(ids))
	if !p.Exists {
		c.Create = &t.Timeline
	}
	for i, key := range keys {
		if taken[i].until() > m.NowMS {
			return nil, fmt.Errorf("%w: machine ID %d (bit_seq %d)", ErrInconsistent, key.ID(), key.BitSeq)
		}
		leases[i] = t.Grant(key.ID(), m.NowMS, provider.NewSecret())
		record := NewRecord(leases[i], req)
		if own := taken[i].Own; own != nil {
			record.Number = own.Number + 1
		}
		c.Grants = append(c.Grants, record)
		if err := line.grant(key, record.End); err != nil {
			return nil, err
		}
	}
	c.Levels = withLevel(p.Levels, t.BitSeq)
	c.Cursor = &Cursor{ring, ids[len(ids)-1]}
	c.Erase, c.Paint = line.changes()
	return leases, nil
}

// NewRecord is the record of a grant.
func NewRecord(l lease.Lease, req provider.AcquireRequest) Record {
	return Record{Lease: l, End: l.ReservedUntil, Service: req.Service, Request: req.RequestID, Meta: maps.Clone(req.Meta)}
}
