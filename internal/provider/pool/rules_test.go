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

func TestFullUntilTheFirstEnd(t *testing.T) {
	terms := provider.DefaultTerms()
	terms.IDs = provider.IDRange{Low: 7, End: 9}
	first, second := granted(8, 8, now-5), granted(7, 8, now-1)
	s := newStage(first, second)
	s.Line = NewLine(EmptyLine(terms.Timeline), []Mark{
		{Key: second.Key(), Created: now - 1, End: second.End}, {Key: first.Key(), Created: now - 5, End: first.End},
	})
	_, c, err := Acquire(s, moment(), terms, provider.AcquireRequest{})
	var full *provider.FullError
	if !errors.As(err, &full) || full.NextEndMS != first.End || full.Slots != 2 || len(c.Grants) > 0 {
		t.Errorf("%+v, %v", c, err)
	}
}

func releaseOf(l lease.Lease, atMS int64) provider.ReleaseRequest {
	return provider.ReleaseRequest{ID: l.ID, BitSeq: l.BitSeq, TimestampMS: atMS, Signature: lease.Sign(l.Secret, l.ID, atMS)}
}

func TestRelease(t *testing.T) {
	held := granted(7, 8, now-100)
	given := granted(7, 8, now-100)
	given.Released, given.End = true, now-50
	forged := releaseOf(held.Lease, now)
	forged.Signature = lease.Sign("other", 7, now)
	for name, test := range map[string]struct {
		record  *Record
		req     provider.ReleaseRequest
		want    error
		wantEnd int64 // 0 where nothing changes
	}{
		"now":                               {held, releaseOf(held.Lease, now), nil, now + 1},
		"before it began":                   {held, releaseOf(held.Lease, now-200), nil, now - 100},
		"forged":                            {held, forged, provider.ErrBadSignature, 0},
		"too far":                           {held, releaseOf(held.Lease, now+provider.ReleaseWindow.Milliseconds()+1), provider.ErrTimestampSkew, 0},
		"released before":                   {given, releaseOf(held.Lease, now), nil, 0},
		"released before, by another clock": {given, releaseOf(held.Lease, now-2*provider.ReleaseWindow.Milliseconds()), nil, 0},
		"never granted":                     {nil, releaseOf(held.Lease, now), provider.ErrNotFound, 0},
		"no such layout":                    {held, provider.ReleaseRequest{ID: 7, BitSeq: 40}, provider.ErrNotFound, 0},
		"without bit_seq": {held, func() provider.ReleaseRequest {
			r := releaseOf(held.Lease, now)
			r.BitSeq = provider.AnyBitSeq
			return r
		}(), nil, now + 1},
		"never later, too":  {func() *Record { r := *held; r.End = now - 10; return &r }(), releaseOf(held.Lease, now), nil, now - 10},
		"another machineID": {held, provider.ReleaseRequest{ID: 1 << 40, BitSeq: 8}, provider.ErrNotFound, 0},
	} {
		s := newStage()
		if test.record != nil {
			s = newStage(test.record)
		}
		c, err := Release(s, moment(), test.req)
		if !errors.Is(err, test.want) || len(c.Ended) != min(int(test.wantEnd), 1) {
			t.Errorf("%s: %+v, %v", name, c, err)
			continue
		}
		if test.wantEnd != 0 && (c.Ended[0].End != test.wantEnd || !c.Ended[0].Released) {
			t.Errorf("%s: it ends at %d, want %d", name, c.Ended[0].End, test.wantEnd)
		}
	}
}

func extensionOf(l lease.Lease) provider.ExtendRequest {
	return provider.ExtendRequest{
		ID: l.ID, BitSeq: l.BitSeq, CreatedMS: l.Created, ExpiredMS: l.Expired, Signature: lease.SignExtend(l.Secret, l.ID, l.Created, l.Expired),
	}
}

func TestExtend(t *testing.T) {
	held := granted(7, 8, now-100)
	edited := func(edit func(*Record)) *Record {
		r := *held
		edit(&r)
		return &r
	}
	long := now + provider.DefaultTerm.Milliseconds()
	req := extensionOf(held.Lease)
	for name, test := range map[string]struct {
		records     []*Record
		fenced      bool
		want        error
		wantExpired int64
	}{
		"living":                    {[]*Record{held}, false, nil, long},
		"longer already":            {[]*Record{edited(func(r *Record) { r.Lease.Expired += 7 })}, false, nil, held.Lease.Expired + 7},
		"released":                  {[]*Record{edited(func(r *Record) { r.Released = true })}, false, provider.ErrConflict, 0},
		"expired":                   {[]*Record{edited(func(r *Record) { r.Lease.Expired = now })}, false, provider.ErrConflict, 0},
		"a finer one inside":        {[]*Record{held, granted(14, 7, now-200)}, false, provider.ErrConflict, 0},
		"a coarser one around":      {[]*Record{held, granted(3, 9, now-200)}, false, provider.ErrConflict, 0},
		"one beside":                {[]*Record{held, granted(8, 8, now-200)}, false, nil, long},
		"somebody else's":           {[]*Record{edited(func(r *Record) { r.Lease.Secret = "other" })}, false, provider.ErrBadSignature, 0},
		"never granted":             {nil, false, provider.ErrNotFound, 0},
		"forgotten":                 {nil, true, &provider.FencedError{}, 0},
		"an older record":           {[]*Record{edited(func(r *Record) { r.Lease.Secret, r.Lease.Created = "other", held.Lease.Created-1 })}, true, &provider.FencedError{}, 0},
		"somebody else's, and late": {[]*Record{edited(func(r *Record) { r.Lease.Secret = "other" })}, true, provider.ErrBadSignature, 0},
	} {
		m := moment()
		if test.fenced {
			m.Fence = &provider.FencedError{UntilMS: now + 1}
			test.want = orFence(test.want, m.Fence)
		}
		longer, c, err := Extend(newStage(test.records...), m, provider.DefaultTerms(), req)
		if !errors.Is(err, test.want) || longer.Expired != test.wantExpired || (err == nil) != (len(c.Ended) == 1) {
			t.Errorf("%s: %v, %v", name, longer, err)
		}
		if longer.Secret != "" {
			t.Errorf("%s: the secret is shown", name)
		}
	}
}

// A clock beyond the end of the timeline makes no lease longer.
func TestExtendBeyondTheTimeline(t *testing.T) {
	m, held := moment(), granted(7, 8, now)
	m.NowMS = snowflake.DefaultTimeline().EndMS()
	held.Lease.Expired, held.End = m.NowMS+1, m.NowMS+1
	if longer, c, err := Extend(newStage(held), m, provider.DefaultTerms(), extensionOf(held.Lease)); err == nil || len(c.Ended) > 0 {
		t.Errorf("extended to %v", longer)
	}
}

func orFence(want error, fence *provider.FencedError) error {
	var fenced *provider.FencedError
	if errors.As(want, &fenced) {
		return fence
	}
	return want
}

func TestVerify(t *testing.T) {
	held := granted(7, 8, now-100)
	released, older, later := *held, *held, *held
	released.Released = true
	older.Lease.Secret, older.Lease.Created = "other", now-200
	later.Lease.Secret, later.Lease.Created = "other", now-50
	for name, test := range map[string]struct {
		record       *Record
		lost, fenced bool // lost by a store that is not fenced, and by one that is
	}{
		"held":                {held, false, false},
		"released":            {&released, true, true},
		"taken over":          {&later, true, true},
		"an older one's back": {&older, true, false},
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
	}
	if got, err := Verify(newStage(), false, []provider.Claim{{ID: 1 << 50, BitSeq: 8}, {ID: 1, BitSeq: -1}}); err != nil || len(got) != 2 {
		t.Errorf("claims of no slot: %v, %v", got, err)
	}
}

// A record that was painted over has no say in the line any more, and a release of
// it changes nothing there.
func TestLateReleaseLeavesTheLine(t *testing.T) {
	coarse, fine := granted(3, 9, now-100), granted(7, 8, now-50)
	s := newStage(coarse, fine)
	coarse.End = now - 60 // as of when the fine one was granted
	s.Line = NewLine(EmptyLine(s.known.Timeline), []Mark{
		{Key: coarse.Key(), Created: coarse.Lease.Created, End: coarse.End}, {Key: fine.Key(), Created: fine.Lease.Created, End: fine.End},
	})
	c, err := Release(s, moment(), releaseOf(coarse.Lease, now-80))
	if err != nil || len(c.Paint) != 1 || c.Paint[0] != (Segment{Low: 3 << 9, End: 7 << 8, FreeAt: now - 79, BitSeq: 9}) {
		t.Fatalf("%+v, %v", c, err)
	}
}
