package pool

import (
	"errors"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

// Release ends a grant early: the one with the machine ID that the request is
// signed for.
func Release(r Reader, m Moment, req provider.ReleaseRequest) (Change, error) {
	p, err := r.Pool()
	if err != nil {
		return Change{}, err
	}
	records, err := r.Records(p.Named(req))
	if err != nil {
		return Change{}, err
	}
	released, err := Released(req, records, m.NowMS)
	if released == nil || err != nil {
		return Change{}, err
	}
	line := newCanvas(r)
	if err := line.move(released.Key(), released.End); err != nil {
		return Change{}, err
	}
	c := Change{Ended: []Record{*released}}
	c.Erase, c.Paint = line.changes()
	return c, nil
}

// Named returns the keys of the records that the request may mean.
func (p Pool) Named(req provider.ReleaseRequest) []Key {
	if !p.Exists {
		return nil
	}
	levels := p.Levels
	if req.BitSeq != provider.AnyBitSeq {
		levels = []int{req.BitSeq}
	}
	var keys []Key
	for _, level := range levels {
		if key, ok := KeyAt(p.Timeline, req.ID, level); ok {
			keys = append(keys, key)
		}
	}
	return keys
}

// Released is the record as the release leaves it: of those that the request may
// mean, nil where there is none, the one that it is signed for. It is nil where the
// lease was released before.
func Released(req provider.ReleaseRequest, records []*Record, nowMS int64) (*Record, error) {
	err := provider.ErrNotFound
	for _, r := range records {
		if r == nil {
			continue
		}
		after, changed, failed := req.Apply(r.granted(), nowMS)
		switch {
		case errors.Is(failed, provider.ErrBadSignature):
			err = failed
			continue
		case failed != nil || !changed:
			return nil, failed
		}
		return new(r.with(after)), nil
	}
	return nil, err
}

// Extend moves the end of a living lease, and returns it without its secret.
func Extend(r Reader, m Moment, t provider.Terms, req provider.ExtendRequest) (lease.Lease, Change, error) {
	// A forgotten grant may overlap: the clock may have been ahead when it was made.
	if m.Fence != nil {
		return lease.Lease{}, Change{}, m.Fence
	}
	p, err := r.Pool()
	if err == nil {
		err = p.known(t)
	}
	if err != nil {
		return lease.Lease{}, Change{}, err
	}
	key, ok := KeyAt(t.Timeline, req.ID, req.BitSeq)
	if !ok || !p.Exists {
		return lease.Lease{}, Change{}, provider.ErrNotFound
	}
	taken, err := r.Taken(p.Levels, []Key{key})
	if err != nil {
		return lease.Lease{}, Change{}, err
	}
	longer, err := Extended(m, t, req, taken[0])
	if err != nil {
		return lease.Lease{}, Change{}, err
	}
	line := newCanvas(r)
	if longer.End != taken[0].Own.End {
		if err := line.move(key, longer.End); err != nil {
			return lease.Lease{}, Change{}, err
		}
	}
	c := Change{Ended: []Record{longer}}
	c.Erase, c.Paint = line.changes()
	return longer.Shown().Lease, c, nil
}

// Extended is the record as the extension leaves it.
func Extended(m Moment, t provider.Terms, req provider.ExtendRequest, taken Taken) (Record, error) {
	if taken.Own == nil {
		return Record{}, provider.ErrNotFound
	}
	longer, err := req.Apply(taken.Own.granted(), t, m.NowMS)
	if err != nil {
		return Record{}, err
	}
	// As for a grant, all others that overlap must have ended: while the clock was
	// ahead, one may have been granted that the longer lease would meet.
	if taken.Others > m.NowMS {
		return Record{}, provider.ErrConflict
	}
	return taken.Own.with(longer), nil
}

// Counted is the counters that go up by an acquire with this outcome. An outcome
// that is no answer of the store is not counted.
func Counted(err error) []string {
	var full *provider.FullError
	var busy *provider.BusyError
	switch {
	case err == nil:
		return []string{provider.CountAcquires, provider.CountGranted}
	case errors.As(err, &full):
		return []string{provider.CountAcquires, provider.CountFull}
	case errors.As(err, &busy), errors.Is(err, provider.ErrConflict):
		return []string{provider.CountAcquires}
	}
	return nil
}

// CountedExtend is the same for an extension.
func CountedExtend(err error) []string {
	switch {
	case err == nil:
		return []string{provider.CountExtends, provider.CountExtended}
	case errors.Is(err, provider.ErrBadSignature):
		return []string{provider.CountExtends, provider.CountNotOwner}
	case errors.Is(err, provider.ErrConflict):
		return []string{provider.CountExtends, provider.CountExtendEnded}
	case errors.Is(err, provider.ErrNotFound):
		return []string{provider.CountExtends}
	}
	return nil
}
