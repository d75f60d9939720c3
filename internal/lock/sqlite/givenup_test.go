package sqlite

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	sqlitefile "github.com/kazahana/kazahana/internal/conn/sqlite"
	"github.com/kazahana/kazahana/internal/lock"
)

// signal is a directory. Whatever Go has for this, timers too, would put what both
// sides do in an order, which the race detector would then take for granted.
type signal string

func (s signal) give(t *testing.T) {
	if err := os.Mkdir(string(s), 0o700); err != nil {
		t.Error(err)
	}
}

func (s signal) await() {
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); runtime.Gosched() {
		if _, err := os.Stat(string(s)); err == nil {
			return
		}
	}
}

// impatient is a context that ends. To the writer it does not look so, which would
// be an order too.
type impatient struct {
	context.Context
	done chan struct{}
}

func (c impatient) Done() <-chan struct{} { return c.done }

// TestGivenUp: whoever gives up returns while the request is still carried out, and
// shares nothing with it. The race detector judges.
func TestGivenUp(t *testing.T) {
	dir := t.TempDir()
	begun, returned := signal(filepath.Join(dir, "begun")), signal(filepath.Join(dir, "returned"))
	armed := false
	file, err := sqlitefile.OpenStore(t.Context(), newPath(t), sqlitefile.Options{At: func(step string) error {
		if armed && step == sqlitefile.StepBegun {
			begun.give(t)
			returned.await()
		}
		return nil
	}}, Tables)
	if err != nil {
		t.Fatal(err)
	}
	s := owned{New(file), file}
	armed = true
	ctx := impatient{context.Background(), make(chan struct{})}
	go func() {
		begun.await()
		close(ctx.done)
	}()
	l, err := s.Do(ctx, lock.Request{
		Op: lock.Acquire, Tenant: "default", Key: "k", Owner: "o", LeaseID: lock.NewLeaseID(), TTLMS: lock.MinTTL.Milliseconds(),
	})
	returned.give(t)
	if err == nil || lock.IsAnswer(err) || l != (lock.Lease{}) {
		t.Errorf("%+v, %v, want that nobody knows what became of it", l, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
