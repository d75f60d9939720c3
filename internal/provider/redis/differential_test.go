package redis

import (
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/memory"
	"github.com/kazahana/kazahana/internal/provider/providertest"
)

// rules is a store that runs package pool.
func rules(*testing.T) providertest.Store {
	var clock atomic.Int64
	store := memory.NewStore(clock.Load)
	return providertest.Store{
		Open:     func(services provider.Services) (provider.Provider, error) { return memory.New(store, services) },
		SetClock: clock.Store,
	}
}

// The script for grants, and what follows from it, answers as package pool does.
func TestAnswersAsTheRulesDo(t *testing.T) {
	rapid.Check(t, providertest.Differential(t, rules, fromLowest))
}

// fromLowest is factory(true), with rings that begin at their lowest machine ID, as
// those of the memory provider do.
func fromLowest(t *testing.T) providertest.Store {
	store := factory(true)(t)
	open := store.Open
	store.Open = func(services provider.Services) (provider.Provider, error) {
		p, err := open(services)
		if err == nil {
			p.(*Provider).random = func(n int64) int64 { return n - 1 }
		}
		return p, err
	}
	return store
}
