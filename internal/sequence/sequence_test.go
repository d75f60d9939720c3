package sequence_test

import (
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/record/memory"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/sequence/sequencetest"
	"github.com/kazahana/kazahana/internal/testkit/etcdtest"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

func TestMemoryConformance(t *testing.T) {
	sequencetest.Run(t, func(*testing.T) sequencetest.Target {
		var clock atomic.Int64
		clock.Store(time.Now().UnixMilli())
		store := sequence.OnRecords(memory.New(clock.Load))
		return sequencetest.Target{
			Open:    func() (sequence.Store, error) { return store, nil },
			Advance: func(d time.Duration) { clock.Add(d.Milliseconds()) },
		}
	})
}
