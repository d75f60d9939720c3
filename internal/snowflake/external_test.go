package snowflake

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

// vectorFile is the golden vectors that every language is held to. They were
// made by an implementation of its own, from the algorithms' descriptions.
type vectorFile struct {
	Untransformed, Plain []vector
	Inspected            []map[string]any
	Keyed                []struct {
		Name, Secret string
		Service      string
		Vectors      []vector
	}
	Rejected []struct {
		External, Why string
		Secret        *string
	}
}

type vector struct{ ID, External string }

func loadVectors(t *testing.T) (f vectorFile) {
	t.Helper()
	raw, err := os.ReadFile("../../testdata/external_ids.json")
	must.Succeed(t, err)
	must.Succeed(t, json.Unmarshal(raw, &f))
	if len(f.Plain) < 20 || len(f.Keyed) < 3 || len(f.Rejected) < 15 || len(f.Untransformed) == 0 {
		t.Fatalf("only %d plain, %d keyed and %d rejected vectors", len(f.Plain), len(f.Keyed), len(f.Rejected))
	}
	return f
}

func keyed(t testing.TB, secret, service string) Codec {
	t.Helper()
	c, err := NewCodec([]byte(secret), service)
	must.Succeed(t, err)
	return c
}

// TestInspectedVectors: the fields have the same names on the wire, and their bits the same places.
func TestInspectedVectors(t *testing.T) {
	f := loadVectors(t)
	if len(f.Inspected) != len(f.Plain) {
		t.Fatalf("%d are inspected of %d", len(f.Inspected), len(f.Plain))
	}
	for _, want := range f.Inspected {
		n, err := strconv.ParseInt(want["id"].(string), 10, 64)
		must.Succeed(t, err)
		in, err := Inspect(ID(n), DefaultLayout(), DefaultEpochMS, Codec{})
		must.Succeed(t, err)
		raw, err := json.Marshal(in)
		must.Succeed(t, err)
		var got map[string]any
		must.Succeed(t, json.Unmarshal(raw, &got))
		got["id"] = strconv.FormatInt(int64(in.ID), 10)
		if !maps.Equal(got, want) { // seeds 000-2.1-1 and 000-2.2-3
			t.Errorf("%d is %v, want %v", n, got, want)
		}
	}
}

func checkVectors(t *testing.T, c Codec, vectors []vector) {
	t.Helper()
	for _, v := range vectors {
		n, err := strconv.ParseInt(v.ID, 10, 64)
		must.Succeed(t, err)
		if got := c.Encode(ID(n)); got != v.External {
			t.Errorf("%d encodes as %q, want %q", n, got, v.External)
		}
		if got, err := c.Decode(v.External); err != nil || got != ID(n) {
			t.Errorf("%q decodes to %d, %v; want %d", v.External, got, err, n)
		}
	}
}

func TestGoldenVectors(t *testing.T) {
	f := loadVectors(t)
	for _, v := range f.Untransformed {
		n, _ := strconv.ParseUint(v.ID, 10, 64)
		// Seed 000-B.3-1.
		if got := base64.RawURLEncoding.EncodeToString(binary.BigEndian.AppendUint64(nil, n)); got != v.External {
			t.Errorf("%d spells %q, want %q", n, got, v.External)
		}
	}
	checkVectors(t, Codec{}, f.Plain) // seed 000-8.3-1
	for _, k := range f.Keyed {
		checkVectors(t, keyed(t, k.Secret, k.Service), k.Vectors) // seeds 000-8.4-1 and 000-A.14-1
	}
	for _, r := range f.Rejected {
		c := Codec{}
		if r.Secret != nil {
			c = keyed(t, *r.Secret, "default")
		}
		if id, err := c.Decode(r.External); !errors.Is(err, ErrInvalidExternal) { // seed 000-8.5-1
			t.Errorf("%q (%s) decodes to %d, %v; it must be rejected", r.External, r.Why, id, err)
		}
	}
}

func TestExternalRoundTrip(t *testing.T) {
	codecs := []Codec{{}, keyed(t, "s3cret", "")}
	rapid.Check(t, func(t *rapid.T) {
		id := ID(rapid.Int64Min(0).Draw(t, "id"))
		for _, c := range codecs {
			s := c.Encode(id)
			if back, err := c.Decode(s); err != nil || back != id || len(s) != ExternalLen { // seed 000-8.1-1
				t.Fatalf("%d -> %q -> %d, %v", id, s, back, err)
			}
			if next := c.Encode(id ^ 1); next[:8] == s[:8] { // the count is hidden
				t.Fatalf("%d is %q, and %d is %q", id, s, id^1, next)
			}
		}
	})
}

// TestOneSpelling: what decodes encodes to itself.
func TestOneSpelling(t *testing.T) {
	codecs := []Codec{{}, keyed(t, "s3cret", "")}
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.StringMatching(`[A-Za-z0-9_\-]{10}[A-Za-z0-9_\-+/= \n]`).Draw(t, "s")
		for _, c := range codecs {
			if id, err := c.Decode(s); err == nil && c.Encode(id) != s { // seed 000-8.5-1
				t.Fatalf("%q decodes to %d, whose spelling is %q", s, id, c.Encode(id))
			}
		}
	})
}

// TestMoremurPermutes checks the inverse on values with the top bit set too.
func TestMoremurPermutes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := rapid.Uint64().Draw(t, "x")
		if unmoremur(moremur(x)) != x {
			t.Fatalf("moremur is not inverted at %#x", x)
		}
	})
}

func TestDecodeBefore(t *testing.T) {
	tl := DefaultTimeline()
	now := tl.EpochMS + 1_000_000
	c := keyed(t, "s3cret", "")
	id := tl.ID(now, 5)
	if got, err := c.DecodeBefore(c.Encode(id), tl, now); err != nil || got != id {
		t.Errorf("an ID of now: %d, %v", got, err)
	}
	if _, err := c.DecodeBefore(c.Encode(tl.ID(now+1, 5)), tl, now); !errors.Is(err, ErrInvalidExternal) {
		t.Errorf("an ID of the future: %v", err)
	}
}

func TestNewCodecRefusesAnEmptySecret(t *testing.T) {
	if _, err := NewCodec(nil, ""); err == nil {
		t.Error("an empty secret was taken")
	}
}

func FuzzDecode(f *testing.F) {
	f.Add("ASNFZ4mrze8")
	f.Add("")
	f.Add("AAAAAAAAAAA")
	f.Add("AAAAAAAAAA\n")
	f.Add("___________")
	c := keyed(f, "s3cret", "")
	f.Fuzz(func(t *testing.T, s string) {
		for _, c := range []Codec{{}, c} {
			if id, err := c.Decode(s); err == nil && (id < 0 || c.Encode(id) != s) {
				t.Errorf("%q decodes to %d", s, id)
			}
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	for name, c := range map[string]Codec{"plain": {}, "keyed": keyed(b, "s3cret", "")} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.Encode(0x0123456789ABCDEF)
			}
		})
	}
}
