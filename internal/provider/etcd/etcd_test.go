package etcd

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
)

var errCrash = errors.New("the process is gone")

// Seeds 003-2-2, 003-4.4-1 and 003-4.4-2.
func TestConformance(t *testing.T) { providertest.Run(t, factory) }

// A cluster answers as memory does.
func TestAnswersAsMemoryDoes(t *testing.T) {
	providertest.Differential(t, providertest.Memory, func(t *testing.T) providertest.Store {
		s := factory(t)
		s.Checks = 20
		return s
	})
}

// factory makes stores with prefixes of their own.
func factory(t *testing.T) providertest.Store {
	var clock atomic.Int64
	cfg := config(t, provider.Services{}, clock.Load)
	open := func(services provider.Services) (*Provider, error) {
		c := cfg
		c.Services = services
		return Open(c)
	}
	return providertest.Store{
		Open: func(services provider.Services) (provider.Provider, error) {
			p, err := open(services)
			if err != nil {
				return nil, err
			}
			p.random = func(int64) int64 { return 0 } // a failed history is played again
			return p, nil
		},
		SetClock:   clock.Store,
		Checks:     10,
		CrashSteps: []string{stepChosen, stepGranted},
		Crash: func(step string, services provider.Services, req provider.AcquireRequest) error {
			p, err := open(services)
			if err != nil {
				return err
			}
			p.at = func(at string) error {
				if at == step {
					return errCrash
				}
				return nil
			}
			if _, err := p.Acquire(testContext(t), req); !errors.Is(err, errCrash) {
				return err
			}
			return p.Close()
		},
	}
}
