package pool_test

import (
	"sync/atomic"
	"testing"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/record/memory"
)

func TestConformance(t *testing.T) {
	providertest.Run(t, func(*testing.T) providertest.Store { // seed 000-7.3-1
		var clock atomic.Int64
		store := memory.New(clock.Load)
		return providertest.Store{
			Open: func(services provider.Services) (provider.Provider, error) {
				return providertest.OverMemory(store, services)
			},
			SetClock: clock.Store,
		}
	})
}
