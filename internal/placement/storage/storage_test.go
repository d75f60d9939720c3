package storage_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/placement"
	"github.com/kazahana/kazahana/internal/placement/storage"
	"github.com/kazahana/kazahana/internal/placement/storage/storagetest"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/memory"
)

func TestConformance(t *testing.T) {
	storagetest.Run(t, storage.OnRecords(memory.New(nil)), 100) // seeds 004-29, 004-39 and 004-60
}

// Each call of an observed storage is told once.
func TestObserved(t *testing.T) {
	var told []string
	records := storage.Observed(storage.OnRecords(memory.New(nil)), func(op string, _ time.Duration) { told = append(told, op) })
	key := placement.Key{Kind: "room", Identity: "1"}
	mine := placement.Record{Owner: placement.Member{Authority: "a", Token: 1}, Version: 1, Token: 1}
	err := errors.Join(records.Store(t.Context(), "t", key, mine), records.Remove(t.Context(), "t", key, mine, false))
	if r, loadErr := records.Load(t.Context(), "t", key); r.Version != 1 || errors.Join(err, loadErr) != nil || !slices.Equal(told, []string{"store", "remove", "load"}) {
		t.Errorf("%+v, %v, %v; told was %q", r, err, loadErr, told)
	}
}

// What this version does not understand is named, and left as it is.
func TestStrangeRecords(t *testing.T) {
	for text, want := range map[string]string{
		`{"format":2,"version":1,"token":1}`: "written by a newer kazahanad (format 2, this one knows up to 1)",
		`{"format":2,"version":{}}`:          "written by a newer kazahanad (format 2, this one knows up to 1)",
		`{"version":0}`:                      "damaged",
		`{`:                                  "damaged",
	} {
		records := memory.New(nil)
		ask := record.Ask{Keys: []string{"activation/t/room/1"}}
		if _, err := records.Change(t.Context(), ask, func(record.View) ([]record.Write, error) {
			return []record.Write{{Key: ask.Keys[0], Value: []byte(text)}}, nil
		}); err != nil {
			t.Fatal(err)
		}
		s := storage.OnRecords(records)
		key := placement.Key{Kind: "room", Identity: "1"}
		newer := placement.Record{Owner: placement.Member{Authority: "a", Token: 1}, Version: 9, Token: 9}
		_, err := s.Load(t.Context(), "t", key)
		for op, err := range map[string]error{"load": err, "store": s.Store(t.Context(), "t", key, newer), "remove": s.Remove(t.Context(), "t", key, newer, false)} {
			if err == nil || errors.Is(err, placement.ErrStale) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "t/room/1") {
				t.Errorf("%s: %s: %v, want one with %q", text, op, err, want)
			}
		}
		if v, err := records.Read(t.Context(), ask); err != nil || string(v.Records[ask.Keys[0]].Value) != text {
			t.Errorf("%s became %s (%v)", text, v.Records[ask.Keys[0]].Value, err)
		}
	}
}
