//go:build go1.25

package kazahana

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// The daemon is killed, and stopped, and started again, under load: no call
// fails, and nothing comes twice.
func TestRestartsUnderLoad(t *testing.T) {
	d := newDaemon(t)
	plain, ahead := d.client(WithTimeout(patience)), d.client(WithTimeout(patience), WithPrefetch(64, 0))
	var over atomic.Bool
	var answered atomic.Int64
	var work sync.WaitGroup
	results := make([][]ID, 24)
	for i := range results {
		work.Go(func() {
			for !over.Load() {
				var ids []ID
				var err error
				switch i % 3 {
				case 0:
					ids = make([]ID, 1)
					ids[0], err = plain.NextID(t.Context())
				case 1:
					ids, err = plain.NextIDs(t.Context(), 10)
				default:
					ids = make([]ID, 1)
					ids[0], err = ahead.NextID(t.Context())
				}
				if err != nil {
					t.Error(err)
					return
				}
				results[i] = append(results[i], ids...)
				answered.Add(1)
			}
		})
	}
	values := make([]int64, 0)
	work.Go(func() {
		for !over.Load() {
			v, err := plain.NextSequence(t.Context(), "k")
			if err != nil {
				t.Error(err)
				return
			}
			values = append(values, v)
		}
	})
	for round := range 4 {
		// Calls are answered before and after each restart.
		for seen, end := answered.Load(), time.Now().Add(patience); answered.Load() < seen+500 && time.Now().Before(end) && !t.Failed(); {
			time.Sleep(time.Millisecond)
		}
		if round == 3 {
			break
		}
		if round%2 == 0 {
			d.Kill()
		} else {
			d.Terminate()
		}
		d.Start()
	}
	over.Store(true)
	work.Wait()
	all := slices.Concat(results...)
	slices.Sort(all)
	if n := len(slices.Compact(slices.Clone(all))); n != len(all) || n < 2000 {
		t.Errorf("%d different IDs of %d", n, len(all))
	}
	for i, v := range values {
		if v != int64(i)+1 {
			t.Fatalf("value %d of the sequence is %d: an answer that was lost took values twice, or the store forgot", i+1, v)
		}
	}
}
