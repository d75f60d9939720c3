package pool

import (
	"bytes"
	"slices"
	"testing"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/record"
)

// damagedBy is the value with a part replaced: the first two bytes say where.
func damagedBy(value, damage []byte) []byte {
	if len(damage) < 2 {
		return nil
	}
	at := (int(damage[0])<<8 | int(damage[1])) % (len(value) + 1)
	damage = damage[2:]
	return append(append(bytes.Clone(value[:at]), damage...), value[min(at+len(damage), len(value)):]...)
}

// seeds are damages to begin with, of values and for themselves.
func seeds(f *testing.F, values ...[]byte) {
	for _, value := range values {
		f.Add(value)
		f.Add(append([]byte{0, 0}, value...))
		f.Add([]byte{0, byte(len(value) / 2), 0xff, 0})
	}
	f.Add([]byte{0, 2, 0xff})
}

// fullPool has one block of machine IDs, all granted, to the request r.
func fullPool(t *testing.T) (*stage, provider.Terms) {
	s, terms := newStage(t), within(0, 15)
	if leases := s.acquire(s.open(terms), provider.AcquireRequest{RequestID: "r", ThroughputPerMS: 16 * 256}); len(leases) != 16 {
		t.Fatalf("%d leases", len(leases))
	}
	return s, terms
}

// grantsNothing damages a record of a full pool. No machine ID may look free.
func grantsNothing(t *testing.T, key string, damage []byte) {
	s, terms := fullPool(t)
	v, err := s.Read(t.Context(), record.Ask{Keys: []string{key}})
	if err != nil {
		t.Fatal(err)
	}
	before := v.Records[key].Value
	value := damagedBy(before, damage)
	if len(value) == 0 || len(value) > record.MaxValue || bytes.Equal(value, before) {
		return
	}
	s.write(map[string][]byte{key: value})
	for _, request := range []string{"", "r", "another"} {
		leases, err := s.open(terms).Acquire(t.Context(), provider.AcquireRequest{RequestID: request})
		if err == nil && (request != "r" || len(leases) != 16) {
			t.Fatalf("%q was granted %v, of %x", request, leases, value)
		}
	}
	_, _ = s.open(terms).List(t.Context(), "")
	_, _ = s.open(terms).Locate(t.Context(), "", 0, begin)
	_, _ = s.open(terms).Counters(t.Context(), "")
}

func FuzzHead(f *testing.F) {
	seeds(f, newHead(provider.DefaultTerms().Timeline, provider.DefaultTerms().BitSeq).value())
	f.Fuzz(func(t *testing.T, damage []byte) {
		for _, value := range [][]byte{damage, seal(bytes.Clone(damage))} {
			if h, err := parseHead(value); err == nil {
				if _, err := parseHead(h.value()); err != nil {
					t.Fatalf("%+v is not read again: %v", h, err)
				}
				_ = h.check(provider.DefaultTerms())
				low, end := h.ringOf(provider.DefaultTerms()).blocks()
				_ = end - low
				_ = h.has(1, provider.DefaultTerms().BitSeq)
			}
		}
		grantsNothing(t, HeadKey(provider.DefaultPool), damage)
	})
}

func FuzzBlock(f *testing.F) {
	seeds(f, encode([]grant{{start: 7 << 8, bitSeq: 8, created: begin, expired: begin + 1, end: begin + 2, service: "a", meta: encodeMeta(map[string]string{"k": "v"})}}))
	f.Fuzz(func(t *testing.T, damage []byte) {
		for _, value := range [][]byte{damage, seal(bytes.Clone(damage))} {
			grants, err := decode(value)
			if err != nil {
				continue
			}
			again, err := decode(encode(grants))
			if err != nil || len(again) != len(grants) {
				t.Fatalf("%+v is read as %+v (%v)", grants, again, err)
			}
			for _, g := range grants {
				decodeMeta(g.meta)
				if until(grants, g.slot()) < g.end {
					t.Fatalf("%+v does not take its own slot", g)
				}
			}
			_, _ = head{}.ringOf(provider.DefaultTerms()).freeIn(0, grants, begin)
		}
		grantsNothing(t, keys{pool: provider.DefaultPool}.block(0), damage)
	})
}

func FuzzPast(f *testing.F) {
	seeds(f, encode(remember(nil, grant{start: 7 << 8, bitSeq: 8, service: "a"})))
	f.Fuzz(func(t *testing.T, damage []byte) {
		s, terms := fullPool(t)
		s.write(map[string][]byte{keys{pool: terms.Pool}.past(0): append(bytes.Clone(damage), 0)})
		if leases, err := s.open(terms).Acquire(t.Context(), provider.AcquireRequest{}); err == nil {
			t.Fatalf("%v was granted", leases)
		}
		_, _ = s.open(terms).Locate(t.Context(), "", 0, begin)
		s.clock.Store(begin + terms.LongestMS())
		s.acquire(s.open(terms), provider.AcquireRequest{}) // no grant rests on a past
	})
}

func FuzzAsked(f *testing.F) {
	seeds(f, asked{want: 2, got: []named{{start: 7 << 8, bitSeq: 8}}}.value())
	f.Fuzz(func(t *testing.T, damage []byte) {
		for _, value := range [][]byte{damage, seal(bytes.Clone(damage))} {
			if a, err := parseAsked(value); err == nil && a.want < 0 {
				t.Fatalf("%+v", a)
			}
		}
		grantsNothing(t, requestKey("", "r"), damage)
	})
}

func FuzzCounts(f *testing.F) {
	seeds(f, counts{1, 2, 3, 4, 5, 300}.value())
	f.Fuzz(func(t *testing.T, value []byte) {
		for name, n := range parseCounts(value).names() {
			if !slices.Contains(provider.CounterNames, name) {
				t.Fatalf("%s is %d", name, n)
			}
		}
	})
}
