package provider

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/kazahana/kazahana/internal/conn/connurl"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// What holds where neither a URL nor a file says otherwise.
const (
	DefaultPool = "default"
	// DefaultTerm balances two costs: renewals per hour against how long the
	// slot of a crashed host stays taken (seed 000, A.12).
	DefaultTerm = 10 * time.Minute
	// DefaultMaxLeasesPerAcquire keeps one careless request from taking a
	// pool: 256 leases of the default layout give 65,536 IDs a millisecond.
	DefaultMaxLeasesPerAcquire = 256
)

// Bounds that Terms.Validate holds.
const (
	// MaxTerm bounds term and quarantine: a slot that a typing error takes for
	// a century is gone for good.
	MaxTerm = 366 * 24 * time.Hour
	// maxPoolName keeps pool names fit for keys of any store.
	maxPoolName = 64
)

// Terms are the terms of a service's grants by a provider that grants by itself: from which pool,
// in which layout, for how long.
type Terms struct {
	Pool     string
	Timeline snowflake.Timeline // epoch and bit_ts; one per pool, for ever
	BitID    int
	BitSeq   int
	Term     time.Duration // Expired - Created; whole milliseconds
	// Quarantine is how long after its end the slot of a lease that was not handed back stays
	// taken; whole milliseconds, 0 for none.
	Quarantine          time.Duration
	IDs                 IDRange // which machine IDs may be granted
	MaxLeasesPerAcquire int
}

// IDRange is a half-open range of machine IDs, [Low, End). The zero value
// stands for all that the layout has.
type IDRange struct{ Low, End int64 }

// IsAll reports whether the range limits nothing.
func (r IDRange) IsAll() bool { return r == IDRange{} }

// Contains reports whether the machine ID is in the range, which must not be
// the zero value.
func (r IDRange) Contains(machineID int64) bool { return r.Low <= machineID && machineID < r.End }

// Count is how many machine IDs the range has; 0 for the zero value.
func (r IDRange) Count() int64 { return r.End - r.Low }

// String gives the range as the URL parameter ids takes it.
func (r IDRange) String() string {
	if r.IsAll() {
		return "all"
	}
	return fmt.Sprintf("%d-%d", r.Low, r.End-1)
}

// DefaultTerms is 41/14/8 from 2026-01-01 in the pool "default", 10 minutes
// and as much quarantine.
func DefaultTerms() Terms {
	return Terms{
		Pool:                DefaultPool,
		Timeline:            snowflake.DefaultTimeline(),
		BitID:               snowflake.DefaultBitID,
		BitSeq:              snowflake.DefaultBitSeq,
		Term:                DefaultTerm,
		Quarantine:          DefaultTerm,
		MaxLeasesPerAcquire: DefaultMaxLeasesPerAcquire,
	}
}

// Layout is how an ID made under these terms is split.
func (t Terms) Layout() snowflake.Layout {
	return snowflake.Layout{BitTS: t.Timeline.BitTS, BitID: t.BitID, BitSeq: t.BitSeq}
}

// Range is the machine IDs that may be granted, the zero value resolved.
func (t Terms) Range() IDRange {
	if t.IDs.IsAll() {
		return IDRange{Low: 0, End: t.Layout().MachineIDs()}
	}
	return t.IDs
}

// Validate reports, as an error, why nothing can be granted on these terms.
func (t Terms) Validate() error {
	if err := validPool(t.Pool); err != nil {
		return err
	}
	if err := t.Layout().Validate(); err != nil {
		return err
	}
	if err := validDuration("term", t.Term, time.Millisecond); err != nil {
		return err
	}
	if err := validDuration("quarantine", t.Quarantine, 0); err != nil {
		return err
	}
	ids := t.Layout().MachineIDs()
	if r := t.Range(); r.Low < 0 || r.Low >= r.End || r.End > ids {
		return fmt.Errorf("ids=%v is no range of machine IDs: a layout of %v has 0-%d", r, t.Layout(), ids-1)
	}
	if t.MaxLeasesPerAcquire < 1 {
		return fmt.Errorf("max_leases_per_acquire is %d, and must be at least 1", t.MaxLeasesPerAcquire)
	}
	return nil
}

func validPool(name string) error {
	ok := name != "" && len(name) <= maxPoolName
	for _, c := range []byte(name) {
		ok = ok && ('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-')
	}
	if !ok {
		return fmt.Errorf("pool %q: a pool's name is 1 to %d letters, digits, '.', '_' or '-'", name, maxPoolName)
	}
	return nil
}

func validDuration(what string, d, least time.Duration) error {
	if d < least || d > MaxTerm || d%time.Millisecond != 0 {
		return fmt.Errorf("%s is %v, and must be whole milliseconds from %v to %v", what, d, least, MaxTerm)
	}
	return nil
}

// LeaseCount is how many leases reach the throughput, in IDs per millisecond,
// up to MaxLeasesPerAcquire. Throughputs below 1 count as 1.
func (t Terms) LeaseCount(throughputPerMS int64) int {
	need := (max(throughputPerMS, 1)-1)>>t.BitSeq + 1
	return int(min(need, int64(t.MaxLeasesPerAcquire)))
}

// CheckClock reports, as an error, why nothing can be granted at this Unix
// millisecond: a clock before the epoch, or after the last timestamp that the
// layout holds, makes leases that no ID can use.
func (t Terms) CheckClock(nowMS int64) error {
	latest := min(t.Timeline.EndMS(), math.MaxInt64-2*MaxTerm.Milliseconds())
	if nowMS < 0 || !t.Timeline.Contains(nowMS) || nowMS >= latest {
		return fmt.Errorf("the provider's clock says %s, and the time of pool %q runs from %s to %s",
			snowflake.FormatMS(nowMS), t.Pool, snowflake.FormatMS(max(t.Timeline.EpochMS, 0)), snowflake.FormatMS(latest))
	}
	return nil
}

// Grant is the lease of the machine ID from nowMS on. Its end in the grant
// rule is its ReservedUntil.
func (t Terms) Grant(machineID, nowMS int64, secret string) lease.Lease {
	return t.Lease(machineID, nowMS, nowMS+t.Term.Milliseconds(),
		nowMS+t.Term.Milliseconds()+t.Quarantine.Milliseconds(), secret)
}

// Lease is a lease on these terms' timeline and layout with the given times,
// as a store remembers it.
func (t Terms) Lease(machineID, created, expired, reservedUntil int64, secret string) lease.Lease {
	return lease.Lease{
		ID: machineID, Created: created, Expired: expired, ReservedUntil: reservedUntil, Secret: secret,
		EpochMS: t.Timeline.EpochMS, BitReserve: snowflake.BitReserve,
		BitTS: t.Timeline.BitTS, BitID: t.BitID, BitSeq: t.BitSeq,
	}
}

// At is the URL of a place where leases are granted on these terms. It names the pool and the machine
// IDs: a holder of leases from one place does not take them for leases from another.
func (t Terms) At(place string) string {
	if t.Pool != DefaultPool {
		place = connurl.With(place, "pool", t.Pool)
	}
	if !t.IDs.IsAll() {
		place = connurl.With(place, "ids", t.IDs.String())
	}
	return place
}

// LongestMS is the time from a grant to its end, in ms.
func (t Terms) LongestMS() int64 { return (t.Term + t.Quarantine).Milliseconds() }

// WithBitSeq is the same terms in another layout of the same timeline, for
// all machine IDs: what a record of another bit_seq was granted on.
func (t Terms) WithBitSeq(bitSeq int) Terms {
	t.BitSeq = bitSeq
	t.BitID = snowflake.ValueBits - t.Timeline.BitTS - bitSeq
	t.IDs = IDRange{}
	return t
}

// Services says on which terms each service is granted leases.
type Services struct {
	Default Terms            // for every service that Named does not have
	Named   map[string]Terms // by service name
}

// Of is the terms of the service.
func (s Services) Of(service string) Terms {
	if t, ok := s.Named[service]; ok {
		return t
	}
	return s.Default
}

// All is the terms of all services.
func (s Services) All() []Terms { return slices.AppendSeq([]Terms{s.Default}, maps.Values(s.Named)) }

// Pools are the names of the pools of all services.
func (s Services) Pools() []string {
	var names []string
	for _, t := range s.All() {
		if !slices.Contains(names, t.Pool) {
			names = append(names, t.Pool)
		}
	}
	return names
}

// LongestMS is the longest time from a grant to its end, in ms.
func (s Services) LongestMS() int64 {
	var longest int64
	for _, t := range s.All() {
		longest = max(longest, t.LongestMS())
	}
	return longest
}

// MaxApart is how far the bit_seq of a layout may be from the first one of its pool, and those of
// two services of a pool from each other: any of them may be the first.
const MaxApart = 4

// Validate reports, as an error, terms that are invalid by themselves, and two services that
// cannot have one pool: a *ServiceError where it is about one of Named.
func (s Services) Validate() error {
	if err := s.Default.Validate(); err != nil {
		return err
	}
	before := []Terms{s.Default}
	for _, name := range slices.Sorted(maps.Keys(s.Named)) {
		t := s.Named[name]
		err := t.Validate()
		for _, other := range before {
			if err == nil && other.Pool == t.Pool {
				err = t.fits(other)
			}
		}
		if err != nil {
			return &ServiceError{name, err}
		}
		before = append(before, t)
	}
	return nil
}

// ServiceError is a fault of the terms of one service.
type ServiceError struct {
	Service string
	Err     error
}

func (e *ServiceError) Error() string { return fmt.Sprintf("service %q: %v", e.Service, e.Err) }
func (e *ServiceError) Unwrap() error { return e.Err }

// fits reports, as an error, that other terms cannot have the same pool.
func (t Terms) fits(other Terms) error {
	if t.Timeline != other.Timeline {
		return TimelineError(t.Pool, other.Timeline, t.Timeline)
	}
	if apart := t.BitSeq - other.BitSeq; max(apart, -apart) > MaxApart {
		return fmt.Errorf("%w: pool %q has bit_seq %d for another service, and %d was asked for: within a pool they differ by at most %d; choose another pool",
			ErrInvalid, t.Pool, other.BitSeq, t.BitSeq, MaxApart)
	}
	return nil
}

// TimelineError says that a pool has one timeline and was asked for another.
// It wraps ErrInvalid.
func TimelineError(pool string, recorded, asked snowflake.Timeline) error {
	return fmt.Errorf("%w: pool %q has epoch %s (%d) and bit_ts %d, and epoch %s (%d) and bit_ts %d were asked for; "+
		"a pool keeps both for ever, since its IDs would repeat otherwise: choose another pool, or the recorded values",
		ErrInvalid, pool, snowflake.FormatMS(recorded.EpochMS), recorded.EpochMS, recorded.BitTS,
		snowflake.FormatMS(asked.EpochMS), asked.EpochMS, asked.BitTS)
}
