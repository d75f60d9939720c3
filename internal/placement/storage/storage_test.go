package storage_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/placement"
	"github.com/kazahana/kazahana/internal/placement/storage"
	"github.com/kazahana/kazahana/internal/placement/storage/storagetest"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/memory"
)

func TestConformance(t *testing.T) {
	records := storage.OnRecords(memory.New(nil))
	storagetest.Run(t, storagetest.Backend{Open: func(testing.TB) storage.Storage { return records }})
}

// An observed storage is the same, and each call is told once.
func TestObserved(t *testing.T) {
	var mu sync.Mutex
	told := map[string]int{}
	records := storage.Observed(storage.OnRecords(memory.New(nil)), func(op string, took time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		if told[op]++; took < 0 {
			t.Errorf("%s took %v", op, took)
		}
	})
	storagetest.Run(t, storagetest.Backend{Open: func(testing.TB) storage.Storage { return records }})
	before := told["load"]
	if _, err := records.Load(t.Context(), "t", placement.Key{Kind: "room", Identity: "1"}); err != nil || told["load"] != before+1 || told["store"] == 0 || told["remove"] == 0 || len(told) != 3 {
		t.Errorf("told was %v, %v", told, err)
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
