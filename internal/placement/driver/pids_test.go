package driver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/placement"
	"github.com/kazahana/kazahana/internal/placement/storage"
)

// reads counts the reads of records.
type reads struct {
	storage.Storage
	n    atomic.Int64
	away atomic.Bool
}

func (r *reads) Load(ctx context.Context, tenant string, k placement.Key) (placement.Record, error) {
	r.n.Add(1)
	if r.away.Load() {
		return placement.Record{}, errors.New("the store is away")
	}
	return r.Storage.Load(ctx, tenant, k)
}

// PL-C11: a remote actor's pid is read once in an interval, and no older than that.
func TestRemotePID(t *testing.T) {
	bubble(t, func(t *testing.T, s *site) {
		counted := &reads{Storage: s.records}
		a := s.start("a:1")
		c := s.start("", func(cfg *Config) { cfg.Records = counted }) // it only resolves
		ready()
		key := room(1)
		ask := func() placement.Resolution {
			t.Helper()
			r, err := c.ResolvePID(t.Context(), key, time.Second)
			if err != nil || r.Authority != "a:1" || r.Locality != placement.Remote {
				t.Fatalf("resolved to %+v, %v", r, err)
			}
			return r
		}
		if r := ask(); r.PID != "" || r.Token != 0 {
			t.Errorf("before the activation it is %+v", r)
		}
		watch := must(c.Subscribe([]placement.EventKind{placement.PIDCached, placement.PIDDropped}))(t)
		defer watch.Close()
		first := must(a.Resolve(t.Context(), key, time.Second))(t)
		before := counted.n.Load()
		for range 10 {
			if r := ask(); r.PID != first.PID || r.Version != first.Version || r.Token != first.Token { // seed 004-24
				t.Errorf("it is %+v, want %+v", r, first)
			}
		}
		if n := counted.n.Load() - before; n != 1 {
			t.Errorf("the record was read %d times", n)
		}
		<-a.Evict(key, first.Token)
		second := must(a.Resolve(t.Context(), key, time.Second))(t)
		time.Sleep(DefaultInterval)
		if r := ask(); r.PID != second.PID || r.Token != second.Token || r.PID == first.PID {
			t.Errorf("an interval later it is %+v, want %+v", r, second)
		}
		time.Sleep(DefaultInterval)
		counted.away.Store(true)
		if r := ask(); r.PID != "" {
			t.Errorf("without the store it is %+v", r)
		}
		told := []string{}
		for len(watch.Events) > 0 {
			e := <-watch.Events
			told = append(told, fmt.Sprint(e.Kind, " ", e.PID))
		}
		want := fmt.Sprintf("pid_cached %[1]s, pid_dropped %[1]s, pid_cached %[2]s, pid_dropped %[2]s", first.PID, second.PID)
		if got := strings.Join(told, ", "); got != want {
			t.Errorf("told is %s, want %s", got, want)
		}
		c.stop()
		a.stop()
	})
}
