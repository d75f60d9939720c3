package storage_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/placement"
	"github.com/kazahana/kazahana/internal/placement/storage"
	"github.com/kazahana/kazahana/internal/placement/storage/storagetest"
)

func TestConformance(t *testing.T) {
	memory := storage.NewMemory()
	storagetest.Run(t, storagetest.Backend{Open: func(testing.TB) storage.Storage { return memory }})
}

// An observed storage is the same, and each call is told once.
func TestObserved(t *testing.T) {
	var mu sync.Mutex
	told := map[string]int{}
	memory := storage.Observed(storage.NewMemory(), func(op string, took time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		if told[op]++; took < 0 {
			t.Errorf("%s took %v", op, took)
		}
	})
	storagetest.Run(t, storagetest.Backend{Open: func(testing.TB) storage.Storage { return memory }})
	before := told["load"]
	if _, err := memory.Load(t.Context(), "t", placement.Key{Kind: "room", Identity: "1"}); err != nil || told["load"] != before+1 || told["store"] == 0 || told["remove"] == 0 || len(told) != 3 {
		t.Errorf("told was %v, %v", told, err)
	}
}

// oneCell is a backend with the same cell under every name.
type oneCell []byte

func (c *oneCell) Read(context.Context, string) ([]byte, error) { return *c, nil }

func (c *oneCell) Swap(_ context.Context, _ string, read, next []byte) (bool, error) {
	if !bytes.Equal(*c, read) {
		return false, nil
	}
	*c = next
	return true, nil
}

func (c *oneCell) Close() error { return nil }

// What this version does not understand is named, and left as it is.
func TestStrangeCells(t *testing.T) {
	for cell, want := range map[string]string{
		`{"format":2,"version":1,"token":1}`: "written by a newer kazahanad (format 2, this one knows up to 1)",
		`{"format":2,"version":{}}`:          "written by a newer kazahanad (format 2, this one knows up to 1)",
		`{"version":0}`:                      "damaged",
		`{`:                                  "damaged",
	} {
		c := oneCell(cell)
		s := storage.New(&c)
		key := placement.Key{Kind: "room", Identity: "1"}
		newer := placement.Record{Owner: placement.Member{Authority: "a", Token: 1}, Version: 9, Token: 9}
		_, err := s.Load(t.Context(), "t", key)
		for op, err := range map[string]error{"load": err, "store": s.Store(t.Context(), "t", key, newer), "remove": s.Remove(t.Context(), "t", key, newer, false)} {
			if err == nil || errors.Is(err, placement.ErrStale) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "t/room/1") {
				t.Errorf("%s: %s: %v, want one with %q", cell, op, err, want)
			}
		}
		if string(c) != cell {
			t.Errorf("%s became %s", cell, c)
		}
	}
}
