package slots_test

import (
	"sync/atomic"
	"testing"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/provider/slots"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/memory"
)

// inMemory makes pools over records in memory.
func inMemory(*testing.T) providertest.Store {
	var clock atomic.Int64
	store := memory.NewArea(record.Area{}, clock.Load)
	forget := func() error { store.Forget(); return nil }
	return providertest.Store{
		Open: func(services provider.Services) (provider.Provider, error) {
			records := store.As(slots.AreaOf(services))
			return slots.New(slots.Config{
				Records: records, Services: services, NowMS: clock.Load, Fence: records.Fence,
				Info:   provider.Info{Name: "records", URL: "memory:", Scope: provider.ScopeUnverified},
				Random: func(int64) int64 { return 0 },
			})
		},
		SetClock: clock.Store, Forget: forget, Empty: forget,
		AnyFree: true, RequestsEnd: true, History: 8,
	}
}

func TestConformance(t *testing.T) { providertest.Run(t, inMemory) }

// The pool over records answers as the one that it will replace.
func TestAnswersAsMemoryDoes(t *testing.T) {
	providertest.Differential(t, providertest.Memory, inMemory)
}
