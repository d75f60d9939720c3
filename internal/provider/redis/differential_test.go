package redis

import (
	"testing"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
)

// The script for grants, and what follows from it, answers as package pool does.
// Seeds 000-6.2-1 and 001-13.
func TestAnswersAsTheRulesDo(t *testing.T) {
	providertest.Differential(t, providertest.Memory, notByChance)
}

// notByChance is factory(true), with rings that begin at the same machine ID each time.
func notByChance(t *testing.T) providertest.Store {
	store := factory(true)(t)
	open := store.Open
	store.Open = func(services provider.Services) (provider.Provider, error) {
		p, err := open(services)
		if err == nil {
			p.(*Provider).random = func(int64) int64 { return 0 }
		}
		return p, err
	}
	return store
}
