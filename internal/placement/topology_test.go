package placement

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/cespare/xxhash/v2"
	"pgregory.net/rapid"
)

const vectorFile = "testdata/rendezvous.json"

// vectors are for authors of the same in another language. Hashes are in hexadecimal.
type vectors struct {
	Scores     []scoreVector     `json:"scores"`
	Placements []placementVector `json:"placements"`
}

type scoreVector struct {
	Kind     string `json:"kind"`
	Identity string `json:"identity"`
	Member   string `json:"member"`
	Score    string `json:"score"`
}

type placementVector struct {
	Members   []string `json:"members"`
	Kind      string   `json:"kind"`
	Identity  string   `json:"identity"`
	Authority string   `json:"authority"`
}

// serving is a host for the kinds of these tests.
func serving(name string, token int64) Host {
	return Host{Member{name, token}, []string{"device", "k", "r", "room", "user"}}
}

// among is a topology of such hosts.
func among(names ...string) *Topology {
	var all []Host
	for i, name := range names {
		all = append(all, serving(name, int64(i+1)))
	}
	return NewTopology(all, Rendezvous)
}

func hosts(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("host-%d.example:9800", i))
	}
	return names
}

func TestGoldenVectors(t *testing.T) {
	v := readVectors(t)
	if len(v.Scores) < 6 || len(v.Placements) < 20 {
		t.Fatalf("only %d scores and %d placements", len(v.Scores), len(v.Placements))
	}
	for _, h := range v.Scores {
		if got := score(Key{h.Kind, h.Identity}, h.Member); got != h.Score {
			t.Errorf("the score of %s/%s for %s is %s, want %s", h.Kind, h.Identity, h.Member, got, h.Score)
		}
	}
	for _, p := range v.Placements {
		// Seed 004-67.
		if got := Rendezvous(slices.Sorted(slices.Values(p.Members)))(Key{p.Kind, p.Identity}); got != p.Authority {
			t.Errorf("the authority of %s/%s among %v is %s, want %s", p.Kind, p.Identity, p.Members, got, p.Authority)
		}
	}
}

func readVectors(t *testing.T) (v vectors) {
	b, err := os.ReadFile(vectorFile)
	if err == nil {
		err = json.Unmarshal(b, &v)
	}
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func score(k Key, member string) string {
	return fmt.Sprintf("%016x", mix(k.hash()^xxhash.Sum64String(member)))
}

// PL-C9: the order in which members are named is nothing, and so are their tokens.
func TestAuthorityIsAFunctionOfTheSet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z]{1,8}:[0-9]`), 1, 20, rapid.ID).Draw(t, "members")
		k := Key{"k", rapid.String().Draw(t, "identity")}
		one := among(names...).Authority(k)
		other := among(rapid.Permutation(names).Draw(t, "in another order")...).Authority(k)
		if one != other || !slices.Contains(names, one) { // seed 004-67
			t.Fatalf("%s and %s", one, other)
		}
	})
}

// A newcomer takes keys, and no other member gets any.
func TestNewcomerMovesItsShareAlone(t *testing.T) {
	const keys = 20_000
	for _, n := range []int{1, 2, 5, 20} {
		before := among(hosts(n)...)
		after := among(hosts(n + 1)...)
		newcomer, moved := hosts(n + 1)[n], 0
		for i := range keys {
			k := Key{"room", fmt.Sprint(i)}
			a := before.Authority(k)
			b := after.Authority(k)
			if a == b {
				continue
			}
			if moved++; b != newcomer {
				t.Fatalf("%v moved from %s to %s when %s came", k, a, b, newcomer)
			}
		}
		// Six standard deviations of a binomial distribution.
		if want := keys / (n + 1); moved < want-900 || moved > want+900 || moved < want*8/10 || moved > want*12/10 {
			t.Errorf("of %d keys %d moved to member %d, want about %d", keys, moved, n+1, want)
		}
	}
}

// Of two memberships of one host the later counts.
func TestLatestMembershipCounts(t *testing.T) {
	var got []Member
	for _, h := range NewTopology([]Host{serving("a", 1), serving("b", 5), serving("a", 1<<62), serving("a", -1<<62)}, Rendezvous).Hosts() {
		got = append(got, h.Member)
	}
	if want := []Member{{"a", 1 << 62}, {"b", 5}}; !slices.Equal(got, want) {
		t.Errorf("members are %v, want %v", got, want)
	}
}

// PL-C4: a store accepts newer records, and its present one again.
func TestPut(t *testing.T) {
	stored := Record{Owner: Member{"a", 1}, Version: 3, Token: 30}
	for _, test := range []struct {
		record Record
		ok     bool
	}{
		{Record{Owner: Member{"a", 1}, Version: 3, Token: 30, PID: "p"}, true},
		{Record{Owner: Member{"b", 2}, Version: 4, Token: 31}, true},
		{Record{Owner: Member{"b", 2}, Version: 3, Token: 30}, false},
		{Record{Owner: Member{"a", 2}, Version: 3, Token: 30}, false},
		{Record{Owner: Member{"a", 1}, Version: 3, Token: 31}, false},
		{Record{Owner: Member{"a", 1}, Version: 4, Token: 30}, false},
		{Record{Owner: Member{"a", 1}, Version: 2, Token: 31}, false},
		{Record{Owner: Member{"a", 1}, Version: 4, Token: 29}, false},
	} {
		next, err := Put(stored, test.record)
		if test.ok != (err == nil) || !test.ok && !errors.Is(err, ErrStale) {
			t.Errorf("%+v on %+v: %v", test.record, stored, err)
		}
		if want := map[bool]Record{true: test.record, false: stored}[test.ok]; !same(next, want) {
			t.Errorf("%+v on %+v gives %+v", test.record, stored, next)
		}
	}
}

func same(a, b Record) bool {
	return a.Owner == b.Owner && a.PID == b.PID && a.Version == b.Version && a.Token == b.Token && slices.Equal(a.Snapshot, b.Snapshot)
}

// PL-C5: in any order of changes at a store, a record that was removed does not come back, and
// another's is not touched.
func TestDropStopsALatePut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.Int64Range(1, 4)
		draw := func(what string) Record {
			v := number.Draw(t, what+" version")
			return Record{Owner: Member{rapid.SampledFrom([]string{"a", "b"}).Draw(t, what), number.Draw(t, what+" membership")}, Version: v, Token: 10*v + number.Draw(t, what+" token"), PID: "p"}
		}
		var before Record
		if rapid.Bool().Draw(t, "something is stored") {
			before = draw("stored")
		}
		mine := draw("mine")
		after := Drop(before, mine, false)
		if again := Drop(after, mine, false); !same(again, after) {
			t.Fatalf("a second time: %+v, then %+v", after, again)
		}
		if late, err := Put(after, mine); err == nil && !same(before, after) {
			t.Fatalf("%+v came back as %+v", mine, late)
		}
		if newer := before.Version > mine.Version || before.Version == mine.Version && before.Owner != mine.Owner; newer && !same(after, before) {
			t.Fatalf("%+v was touched: %+v", before, after)
		}
	})
}

func TestParseKey(t *testing.T) {
	for text, want := range map[string]Key{"room/42": room, "a/b/c": {"a", "b/c"}, "錠/前": {"錠", "前"}} {
		got, err := ParseKey(text)
		if err != nil || got != want || got.String() != text {
			t.Errorf("%q is %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "room", "/42", "room/", "room/\x00", "room/\xff", string(make([]byte, 400)) + "/1"} {
		if got, err := ParseKey(text); !errors.Is(err, ErrInvalid) { // seed 004-62
			t.Errorf("%q is %+v, %v", text, got, err)
		}
	}
	if err := CheckKind("a/b"); !errors.Is(err, ErrInvalid) {
		t.Errorf("the kind a/b: %v", err)
	}
}

func BenchmarkAuthority(b *testing.B) {
	for _, n := range []int{3, 100, 1000} {
		topology := among(hosts(n)...)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				topology.Authority(room)
			}
		})
	}
}
