package pool

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// write puts any values into the store.
func (s *stage) write(values map[string][]byte) {
	s.Helper()
	for key, value := range values {
		_, err := s.Store.Change(s.Context(), record.Ask{Keys: []string{key}}, func(record.View) ([]record.Write, error) {
			return []record.Write{{Key: key, Value: value}}, nil
		})
		must.Succeed(s, err)
	}
}

// A block that cannot be read is full, and all other machine IDs are granted. Where nothing else is free,
// the error names it; where a list says so, List does.
func TestDamagedBlockIsFull(t *testing.T) {
	whole := encode([]grant{{start: 7 << 12, bitSeq: 8, end: 1, service: "a"}})
	for name, value := range map[string][]byte{
		"no value of ours": []byte("\x00"), "one that is cut": whole[:len(whole)-2], "one that is cut early": whole[:4], "a long one": []byte(strings.Repeat("\xff", 5000)),
	} {
		for _, blocks := range []int64{2, 20} {
			s := newStage(t)
			p := s.open(within(0, 16*blocks-1))
			damaged := keys{pool: provider.DefaultPool}.block(blocks / 2)
			s.write(map[string][]byte{damaged: value})
			granted, failed := int64(0), 0
			var full *provider.FullError
			for range 16*blocks + 8 {
				_, err := p.Acquire(t.Context(), provider.AcquireRequest{})
				switch {
				case err == nil:
					granted++
				case errors.As(err, &full):
				case !errors.Is(err, errFormat) || !strings.Contains(err.Error(), damaged):
					t.Fatalf("%s: %v", name, err)
				default:
					failed++
				}
			}
			want := map[int64]int{2: 24, 20: 0}[blocks] // of two blocks each acquire looks at both
			if granted != 16*(blocks-1) || failed != want || want == 0 && (full == nil || full.NextEndMS != begin+provider.DefaultTerms().LongestMS()) {
				t.Errorf("%s, of %d blocks: %d were granted, %d errors, %+v", name, blocks, granted, failed, full)
			}
			if _, err := p.List(t.Context(), ""); !errors.Is(err, errFormat) || !strings.Contains(err.Error(), damaged) {
				t.Errorf("%s: List has the error %v", name, err)
			}
		}
	}
}

// With any bit damaged, a value is not read.
func TestDamageIsSeen(t *testing.T) {
	for name, c := range map[string]struct {
		value []byte
		read  func([]byte) error
	}{
		"a head":    {newHead(provider.DefaultTerms().Timeline, provider.DefaultTerms().BitSeq).value(), func(v []byte) error { _, err := parseHead(v); return err }},
		"a block":   {encode([]grant{{start: 7 << 8, bitSeq: 8, end: begin, service: "a"}}), func(v []byte) error { _, err := decode(v); return err }},
		"a request": {asked{want: 1, got: []named{{start: 7 << 8, bitSeq: 8}}}.value(), func(v []byte) error { _, err := parseAsked(v); return err }},
	} {
		must.Succeed(t, c.read(c.value))
		for bit := range 8 * len(c.value) {
			c.value[bit/8] ^= 1 << (bit % 8)
			if err := c.read(c.value); !errors.Is(err, errFormat) {
				t.Errorf("%s with bit %d damaged: %v", name, bit, err)
			}
			c.value[bit/8] ^= 1 << (bit % 8)
		}
	}
}

// An error about a record says where the record is, also where it is the head, and what to do.
func TestUnreadableRecordsAreNamed(t *testing.T) {
	terms := provider.DefaultTerms()
	for key, call := range map[string]func(p *Provider) error{
		HeadKey(terms.Pool): func(p *Provider) error { return p.Ready(t.Context()) },
		keys{pool: terms.Pool}.block(0): func(p *Provider) error {
			_, err := p.List(t.Context(), "")
			return err
		},
		keys{pool: terms.Pool}.blocks() + "?": func(p *Provider) error {
			_, err := p.List(t.Context(), "")
			return err
		},
	} {
		s := newStage(t)
		p := s.open(terms)
		s.acquire(p, provider.AcquireRequest{})
		s.write(map[string][]byte{key: []byte("?")})
		err := call(p)
		for _, part := range []string{p.cfg.Info.URL, fmt.Sprintf("%q", key), "another version", "restore"} {
			if !errors.Is(err, errFormat) || !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q is missing in %v", key, part, err)
			}
		}
	}
}

// fullBlock is a block that has grants of all layouts, with as much as there can be of everything,
// and its past.
func fullBlock(block int64, bitSeq int) (value, past []byte) {
	var grants, before []grant
	low := block << (bitSeq + blockBits)
	for fine := bitSeq - provider.MaxApart; fine <= bitSeq+provider.MaxApart; fine++ {
		for start := low; start < low+1<<(bitSeq+blockBits); start += 1 << fine {
			g := grant{
				start: start, bitSeq: fine, created: begin - 3, expired: begin - 2, end: begin - 1, service: strings.Repeat("s", provider.MaxNameBytes),
				meta: make([]byte, provider.MaxMetaBytes+4*provider.MaxMetaKeys),
			}
			grants = append(grants, g)
			for range keptPast {
				before = remember(before, g)
			}
		}
	}
	boundMeta(grants)
	return encode(grants), encode(before)
}

// The greatest change is within the limits of the record store: two full blocks with their pasts, and
// a request of the most leases.
func TestGreatestChange(t *testing.T) {
	s := newStage(t)
	terms := provider.DefaultTerms()
	s.acquire(s.open(terms), provider.AcquireRequest{})
	name, request := keys{pool: terms.Pool}, strings.Repeat("r", provider.MaxNameBytes)
	values := map[string][]byte{}
	for block := range int64(maxBlocks) {
		// The past's first entry makes room for one more of each.
		values[name.block(5+block)], values[name.past(5+block)] = fullBlock(5+block, terms.BitSeq)
	}
	so := asked{want: mostLeases}
	for i := range int64(mostLeases - maxBlocks) {
		so.got = append(so.got, named{start: i << 12, bitSeq: 12})
	}
	values[requestKey("", request)] = so.value()
	s.write(values)
	coarse := terms.WithBitSeq(terms.BitSeq + provider.MaxApart)
	coarse.IDs, coarse.MaxLeasesPerAcquire = provider.IDRange{Low: 5, End: 5 + maxBlocks}, 10*mostLeases
	s.wrote = nil
	meta := map[string]string{}
	for i := range provider.MaxMetaKeys {
		meta[fmt.Sprintf("%02d", i)] = strings.Repeat("m", provider.MaxMetaBytes/provider.MaxMetaKeys-2)
	}
	_, err := s.open(coarse).Acquire(t.Context(), provider.AcquireRequest{RequestID: request, ThroughputPerMS: 1 << 40, Meta: meta})
	if !errors.Is(err, provider.ErrConflict) { // the leases that it has got are none
		t.Fatalf("the error is %v", err)
	}
	size := 0
	for _, w := range s.wrote {
		size += len(w.Value)
	}
	if len(s.wrote) != 2*maxBlocks+2 || size < record.MaxValue*3/4 {
		t.Errorf("%d writes have %d bytes", len(s.wrote), size)
	}
}

// Two runs of a rule do not share what they add to a request.
func TestRunsDoNotShareARequest(t *testing.T) {
	so := asked{got: make([]named, 1, 9)}
	one := append(so.clipped().got, named{start: 1})
	two := append(so.clipped().got, named{start: 2})
	if one[1].start != 1 || two[1].start != 2 {
		t.Errorf("%v and %v", one, two)
	}
}

// A request with a record that cannot be read counts as one whose leases have ended.
func TestDamagedRequest(t *testing.T) {
	s := newStage(t)
	p := s.open(provider.DefaultTerms())
	s.acquire(p, provider.AcquireRequest{RequestID: "r"})
	s.write(map[string][]byte{requestKey("", "r"): []byte("?")})
	if _, err := p.Acquire(t.Context(), provider.AcquireRequest{RequestID: "r"}); !errors.Is(err, provider.ErrConflict) {
		t.Errorf("the error is %v", err)
	}
}
