package pool

import (
	"errors"
	"testing"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
)

const now = snowflake.DefaultEpochMS + 1_000_000

// stage is a pool whose records a test writes by hand.
type stage struct {
	*Line
	known    Pool
	records  map[Key]*Record
	answered []*Record
}

func newStage(records ...*Record) *stage {
	timeline := snowflake.DefaultTimeline()
	s := &stage{known: Pool{Exists: true, Timeline: timeline, Levels: []int{7, 8, 9}}, records: map[Key]*Record{}}
	for _, r := range records {
		s.records[r.Key()] = r
	}
	s.Line = NewLine(EmptyLine(timeline), nil) // nothing was ever granted, it says
	return s
}

func (s *stage) Pool() (Pool, error)                            { return s.known, nil }
func (s *stage) Answered(string, string) ([]*Record, error)     { return s.answered, nil }
func (s *stage) Cursor(Ring) (int64, bool, error)               { return 6, true, nil }
func (s *stage) History([]Key, int64) (all []Record, err error) { return nil, nil }

func (s *stage) Records(keys []Key) ([]*Record, error) {
	var all []*Record
	for _, key := range keys {
		all = append(all, s.records[key])
	}
	return all, nil
}

func (s *stage) Taken(_ []int, keys []Key) ([]Taken, error) {
	taken := make([]Taken, len(keys))
	for i, key := range keys {
		taken[i].Own = s.records[key]
		for other, r := range s.records {
			if other != key && other.Slot().Overlaps(key.Slot()) {
				taken[i].Others = max(taken[i].Others, r.End)
			}
		}
	}
	return taken, nil
}

// granted is a record of the machine ID, in the layout, at that time.
func granted(id int64, bitSeq int, atMS int64) *Record {
	l := provider.DefaultTerms().WithBitSeq(bitSeq).Grant(id, atMS, "secret")
	return &Record{Lease: l, End: l.ReservedUntil}
}

func moment() Moment { return Moment{NowMS: now, Random: func(int64) int64 { return 0 }} }

// Should the line contradict the records, the records hold: nothing is granted that
// they say is taken.
func TestRecordsOutweighTheLine(t *testing.T) {
	old := now - provider.DefaultTerm.Milliseconds()*2
	for name, taken := range map[string][]*Record{
		"same": {granted(7, 8, now-1)}, "coarser": {granted(3, 9, now-1)}, "finer": {granted(15, 7, now-1)},
		"coarser, and the same has ended": {granted(7, 8, old), granted(3, 9, now-1)},
	} {
		leases, c, err := Acquire(newStage(taken...), moment(), provider.DefaultTerms(), provider.AcquireRequest{})
		if !errors.Is(err, ErrInconsistent) || len(leases) > 0 || len(c.Grants) > 0 {
			t.Errorf("%s: %v was granted, with the error %v", name, leases, err)
		}
	}
	ended := granted(7, 8, old)
	leases, _, err := Acquire(newStage(ended), moment(), provider.DefaultTerms(), provider.AcquireRequest{})
	if err != nil || len(leases) != 1 || leases[0].ID != 7 {
		t.Errorf("at the end of the record: %v, %v", leases, err)
	}
}

func TestAcquireIsRefused(t *testing.T) {
	request := provider.AcquireRequest{RequestID: "r"}
	live, released, expired := granted(1, 8, now), granted(2, 8, now), granted(3, 8, now-provider.DefaultTerm.Milliseconds())
	released.Released = true
	other := provider.DefaultTerms()
	other.Timeline.EpochMS--
	fence := &provider.FencedError{UntilMS: now + 1}
	for name, test := range map[string]struct {
		answered []*Record
		edit     func(*Moment)
		terms    provider.Terms
		want     error
	}{
		"granted again since": {[]*Record{live, nil}, nil, provider.DefaultTerms(), provider.ErrConflict},
		"released":            {[]*Record{live, released}, nil, provider.DefaultTerms(), provider.ErrConflict},
		"expired":             {[]*Record{expired, live}, nil, provider.DefaultTerms(), provider.ErrConflict},
		"live":                {[]*Record{live}, nil, provider.DefaultTerms(), nil},
		"fenced":              {[]*Record{live}, func(m *Moment) { m.Fence = fence }, provider.DefaultTerms(), fence},
		"another timeline":    {nil, nil, other, provider.ErrInvalid},
	} {
		s, m := newStage(), moment()
		s.answered = test.answered
		if test.edit != nil {
			test.edit(&m)
		}
		leases, c, err := Acquire(s, m, test.terms, request)
		if !errors.Is(err, test.want) || len(c.Grants) > 0 || err == nil && leases[0] != live.Lease {
			t.Errorf("%s: %v, %v", name, leases, err)
		}
	}
	m := moment()
	m.NowMS = snowflake.DefaultEpochMS - 1
	if leases, _, err := Acquire(newStage(), m, provider.DefaultTerms(), request); err == nil {
		t.Errorf("granted before the epoch: %v", leases)
	}
}

func extensionOf(l lease.Lease) provider.ExtendRequest {
	return provider.ExtendRequest{
		ID: l.ID, BitSeq: l.BitSeq, CreatedMS: l.Created, ExpiredMS: l.Expired, Signature: lease.SignExtend(l.Secret, l.ID, l.Created, l.Expired),
	}
}

// While the fence holds, no lease is extended, and a record that is missing, or older than
// the lease, says nothing of the lease.
func TestFence(t *testing.T) {
	held := granted(7, 8, now-100)
	edited := func(edit func(*Record)) *Record {
		r := *held
		edit(&r)
		return &r
	}
	fence := &provider.FencedError{UntilMS: now + 1}
	for name, test := range map[string]struct {
		record       *Record
		lost, fenced bool // lost by a store that is not fenced, and by one that is
	}{
		"held":                {held, false, false},
		"released":            {edited(func(r *Record) { r.Released = true }), true, true},
		"taken over":          {edited(func(r *Record) { r.Lease.Secret, r.Lease.Created = "other", now-50 }), true, true},
		"an older one's back": {edited(func(r *Record) { r.Lease.Secret, r.Lease.Created = "other", now-200 }), true, false},
		"forgotten":           {nil, true, false},
	} {
		s := newStage()
		if test.record != nil {
			s = newStage(test.record)
		}
		for fenced, want := range map[bool]bool{false: test.lost, true: test.fenced} {
			got, err := Verify(s, fenced, []provider.Claim{provider.ClaimOf(held.Lease)})
			if err != nil || (len(got) == 1) != want {
				t.Errorf("%s, fenced %v: %v, %v", name, fenced, got, err)
			}
		}
		m := moment()
		m.Fence = fence
		if longer, c, err := Extend(s, m, provider.DefaultTerms(), extensionOf(held.Lease)); err != error(fence) || len(c.Ended) > 0 {
			t.Errorf("%s: extended to %v, %v", name, longer, err)
		}
	}
	m := moment()
	m.NowMS = snowflake.DefaultTimeline().EndMS()
	held.Lease.Expired, held.End = m.NowMS+1, m.NowMS+1
	if longer, c, err := Extend(newStage(held), m, provider.DefaultTerms(), extensionOf(held.Lease)); err == nil || len(c.Ended) > 0 {
		t.Errorf("extended beyond the timeline to %v", longer)
	}
}
