package lock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kazahana/kazahana/internal/record"
)

const (
	// recordPrefix begins the keys of all records of this package.
	recordPrefix = "lock/"
	// recordEnd ends them, so that a watch of one key hears of no longer key. It comes
	// before every character of a lock's key: the order stays.
	recordEnd = "\x1f"
	// leastPage is the least number of records that a List reads at once: some of them
	// are not held.
	leastPage = 100
)

// OnRecords keeps locks as records: the value of each is a State, and the term of the
// latest lease is the record's term. The records are closed by their owner.
func OnRecords(records record.Store) *Records { return &Records{records: records, maxTTL: MaxTTL} }

// Records is a Store that runs the transition as a rule over records.
type Records struct {
	records record.Store
	maxTTL  time.Duration
}

var _ Store = (*Records)(nil)

// Limit returns the store with a longest term, MinTTL to MaxTTL; 0 means MaxTTL.
func (s *Records) Limit(maxTTL time.Duration) (*Records, error) {
	maxTTL = cmp.Or(maxTTL, MaxTTL)
	if maxTTL < MinTTL || maxTTL > MaxTTL || maxTTL%time.Millisecond != 0 {
		return nil, fmt.Errorf("max_lock_ttl: the longest term of a lock is %v to %v in whole milliseconds, not %v", MinTTL, MaxTTL, maxTTL)
	}
	return &Records{s.records, maxTTL}, nil
}

func tenantPath(tenant string) string  { return recordPrefix + tenant + "/" } // a tenant has no slash
func pathOf(tenant, key string) string { return tenantPath(tenant) + key + recordEnd }
func keyOf(tenant, path string) string {
	return strings.TrimSuffix(path[len(tenantPath(tenant)):], recordEnd)
}

// Do implements Store.
func (s *Records) Do(ctx context.Context, r Request) (Lease, error) {
	if err := r.Validate(); err != nil {
		return Lease{}, err
	}
	if r.TTL() > s.maxTTL {
		return Lease{}, fmt.Errorf("%w: a term of %v is longer than max_lock_ttl in the URL of the store, %v", ErrInvalid, r.TTL(), s.maxTTL)
	}
	if r.Op != Acquire {
		ctx = record.Upkeep(ctx)
	}
	var l Lease
	try := func() (err error) {
		l, err = s.do(ctx, r)
		return err
	}
	var err error
	if r.RequestID == "" {
		err = try()
	} else {
		err = record.Settle(try, IsAnswer)
	}
	if r.Op == Acquire && r.RequestID == "" && errors.Is(err, record.ErrUnconfirmed) {
		err = fmt.Errorf("%w; %s", err, s.giveBack(ctx, r))
	}
	return l, err
}

// decision is the result of one run of the rule for a request.
type decision struct {
	write    *record.Write
	repeated Lease // where there is nothing to write
}

// do runs the transition. The answer is decoded from the value that was committed: the times
// in it are those of the commit.
func (s *Records) do(ctx context.Context, r Request) (Lease, error) {
	var latest atomic.Pointer[decision] // a run may still be under way when the change has failed
	atMS, err := s.change(ctx, r.Tenant, r.Key, func(k Known) (*record.Write, error) {
		after, l, err := Apply(k, r)
		d := &decision{repeated: l}
		switch {
		case err != nil:
			return nil, err
		case l.Repeated:
		case r.Op == Release:
			d.write = after.released(k)
		default:
			// A renewal without a term has the one before, from when max_lock_ttl may have been longer.
			after.TermMS = min(after.TermMS, s.maxTTL.Milliseconds())
			d.write = after.lasting(r, k.State)
		}
		latest.Store(d)
		return d.write, nil
	})
	if err != nil {
		return Lease{}, err
	}
	d := latest.Load()
	if d.write == nil {
		return d.repeated, nil
	}
	committed := record.Record{Value: d.write.Value, LeftMS: d.write.TermMS}
	if d.write.TermMS != 0 {
		committed.EndMS = atMS + d.write.TermMS
	}
	after, err := parseState(committed, true)
	return after.Lease(r.Tenant, r.Key, committed.LeftMS), err
}

// lasting returns the write of a state after a grant or a renewal.
func (s State) lasting(r Request, before State) *record.Write {
	return &record.Write{
		Value: s.value(r.Op == Acquire), Mark: s.Token, TermMS: s.TermMS, KeepMS: KeepIdle.Milliseconds(), GrantMS: s.TermMS,
		Tell: r.Announce && (r.Op == Acquire || s.Note != before.Note),
	}
}

// released returns the write of a state after a release. The record is kept as long as without
// the release.
func (s State) released(before Known) *record.Write {
	return &record.Write{Value: s.value(false), Mark: s.Token, KeepMS: before.LeftMS + KeepIdle.Milliseconds(), Tell: true, Frees: true}
}

// change replaces the state of a key by what step returns, unless that is nil.
func (s *Records) change(ctx context.Context, tenant, key string, step func(Known) (*record.Write, error)) (atMS int64, err error) {
	path := pathOf(tenant, key)
	return s.records.Change(ctx, record.Ask{Keys: []string{path}}, func(v record.View) ([]record.Write, error) {
		k, err := knownOf(v, path)
		if err != nil {
			return nil, fmt.Errorf("lock %q: %w", key, err)
		}
		w, err := step(k)
		if err != nil || w == nil {
			return nil, err
		}
		w.Key = path
		return []record.Write{*w}, nil
	})
}

// knownOf returns the view's knowledge of a key.
func knownOf(v record.View, path string) (Known, error) {
	k := Known{Floor: v.Floor, Life: lifeOf(v.Life), NowMS: v.NowMS, FencedUntilMS: v.Fence.UntilMS, FenceReason: v.Fence.Reason}
	found, ok := v.Records[path]
	if !ok {
		return k, nil
	}
	var err error
	k.State, err = parseState(found, false)
	k.LeftMS = found.LeftMS
	return k, err
}

// lifeOf returns a record's memory of a life's name.
func lifeOf(life string) uint64 {
	if life == "" {
		return 0
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(life))
	return h.Sum64()
}

// giveBack ends a lease that too few replicas confirmed and that the caller cannot ask for
// again. It returns the outcome, for people.
func (s *Records) giveBack(ctx context.Context, r Request) string {
	ended := true
	_, err := s.change(ctx, r.Tenant, r.Key, func(k Known) (*record.Write, error) {
		if ended = k.State.LeaseID != r.LeaseID || k.State.Status != Active; ended {
			return nil, nil
		}
		k.State.Status = Released
		return k.State.released(k), nil
	})
	if err != nil && !errors.Is(err, record.ErrUnconfirmed) {
		return fmt.Sprintf("the lease could not be given back (%v), and may last until its end", err)
	}
	if err == nil && ended {
		return "the lease has ended"
	}
	return "the lease was given back"
}

// Waits implements Store.
func (s *Records) Waits() bool { return false }

// Get implements Store.
func (s *Records) Get(ctx context.Context, tenant, key string) (Lease, error) {
	if err := CheckKey(tenant, key); err != nil {
		return Lease{}, err
	}
	path := pathOf(tenant, key)
	v, err := s.records.Read(record.Upkeep(ctx), record.Ask{Keys: []string{path}})
	if err != nil {
		return Lease{}, err
	}
	k, err := knownOf(v, path)
	if err != nil {
		return Lease{}, fmt.Errorf("lock %q: %w", key, err)
	}
	if k.State.Token == 0 {
		return Lease{}, ErrNotFound
	}
	return k.State.Lease(tenant, key, k.LeftMS), nil
}

// List implements Store.
func (s *Records) List(ctx context.Context, tenant, after string, limit int) ([]Lease, error) {
	if err := CheckPage(tenant, after, limit); err != nil {
		return nil, err
	}
	from, size := "", max(limit, leastPage)
	if after != "" {
		from = pathOf(tenant, after)
	}
	var page []Lease
	for {
		heads, err := s.records.List(ctx, tenantPath(tenant), from, size)
		if err != nil {
			return nil, err
		}
		for _, h := range heads {
			from = h.Key
			state, err := parseState(h.Record, true)
			if err != nil {
				return nil, fmt.Errorf("lock %q: %w", keyOf(tenant, h.Key), err)
			}
			if state.Status == Active {
				page = append(page, state.Lease(tenant, keyOf(tenant, h.Key), h.LeftMS))
			}
			if len(page) == limit {
				return page, nil
			}
		}
		if len(heads) < size {
			return page, nil
		}
	}
}

// Notify implements Store.
func (s *Records) Notify(ctx context.Context, tenant, key string) (<-chan struct{}, error) {
	return s.records.Watch(ctx, pathOf(tenant, key))
}

// Changes implements Store.
func (s *Records) Changes(ctx context.Context, tenant, prefix string) (<-chan struct{}, error) {
	return s.records.Watch(ctx, tenantPath(tenant)+prefix)
}
