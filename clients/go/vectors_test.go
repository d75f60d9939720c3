//go:build go1.25

package kazahana

import (
	"encoding/json"
	"errors"
	"os"
	"testing"
)

type vector struct {
	ID       ID
	External string
}

func checkVectors(t *testing.T, c ExternalCodec, all []vector) {
	t.Helper()
	for _, v := range all {
		if got := c.Encode(v.ID); got != v.External {
			t.Errorf("%d encodes as %q, want %q", v.ID, got, v.External)
		}
		if got, err := c.Decode(v.External); err != nil || got != v.ID {
			t.Errorf("%q decodes to %d, %v; want %d", v.External, got, err, v.ID)
		}
	}
}

// The codec and the layout agree with the vectors that all languages share.
func TestVectors(t *testing.T) {
	var f struct {
		Plain     []vector
		Inspected []struct {
			ID          ID     `json:"id"`
			External    string `json:"external"`
			TimestampMS int64  `json:"timestamp_ms"`
			MachineID   int64  `json:"machine_id"`
			Sequence    int64  `json:"sequence"`
			Kind        string `json:"kind"`
		}
		Keyed []struct {
			Secret, Service string
			Vectors         []vector
		}
		Rejected []struct {
			External string
			Secret   *string
		}
	}
	text, err := os.ReadFile("../../testdata/external_ids.json")
	if err == nil {
		err = json.Unmarshal(text, &f)
	}
	if err != nil || len(f.Plain) < 20 || len(f.Inspected) < 20 || len(f.Keyed) < 3 || len(f.Rejected) < 15 {
		t.Fatalf("%d plain, %d inspected, %d keyed and %d rejected vectors: %v", len(f.Plain), len(f.Inspected), len(f.Keyed), len(f.Rejected), err)
	}
	checkVectors(t, ExternalCodec{}, f.Plain)
	for _, want := range f.Inspected {
		in, err := DefaultLayout().Inspect(want.ID)
		// Seed 000-A.5-1.
		if err != nil || in.External != want.External || in.Time.UnixMilli() != want.TimestampMS ||
			in.MachineID != want.MachineID || in.Sequence != want.Sequence || in.Fallback != (want.Kind == "fallback") {
			t.Errorf("%+v, %v, want %+v", in, err, want)
		}
	}
	for _, k := range f.Keyed {
		c, err := NewExternalCodec(k.Secret, k.Service)
		if err != nil {
			t.Fatal(err)
		}
		checkVectors(t, c, k.Vectors) // seed 000-A.14-1
	}
	for _, r := range f.Rejected {
		var c ExternalCodec
		if r.Secret != nil {
			if c, err = NewExternalCodec(*r.Secret, ""); err != nil {
				t.Fatal(err)
			}
		}
		if id, err := c.Decode(r.External); !errors.Is(err, ErrInvalidExternalID) {
			t.Errorf("%q decodes to %d, %v", r.External, id, err)
		}
	}
	if _, err := NewExternalCodec("", ""); !errors.Is(err, ErrInvalidParams) {
		t.Error(err)
	}
}
