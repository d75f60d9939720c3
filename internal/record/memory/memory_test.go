package memory_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/memory"
	"github.com/kazahana/kazahana/internal/record/recordtest"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

func TestMain(m *testing.M) { await.Main(m) }

// client leaves the store open.
type client struct{ *memory.Store }

func (client) Close() error { return nil }

func TestConformance(t *testing.T) {
	recordtest.Run(t, func(t *testing.T) recordtest.Target {
		var clock atomic.Int64
		clock.Store(1_800_000_000_000)
		areas := map[record.Area]*memory.Store{}
		return recordtest.Target{
			Open: func(area record.Area) (record.Store, error) {
				if areas[area] == nil {
					areas[area] = memory.NewArea(area, clock.Load)
					t.Cleanup(func() { areas[area].Close() })
				}
				return client{areas[area]}, nil
			},
			Advance: func(d time.Duration) { clock.Add(d.Milliseconds()) },
		}
	})
}

// Closing the store ends its watches and refuses calls.
func TestClosed(t *testing.T) {
	s := memory.New(nil)
	tokens, err := s.Watch(t.Context(), "a")
	must.Succeed(t, err)
	must.Succeed(t, s.Close())
	for range tokens {
	}
	if _, err := s.Read(t.Context(), record.Ask{}); err == nil {
		t.Error("a store that is closed can be read")
	}
}
