package kubeconn

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/conn/connurl"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// hung is a kubeconfig that nobody can read, as on a disk that does not answer.
func hung(t *testing.T) Config {
	path := filepath.Join(t.TempDir(), "config")
	must.Succeed(t, syscall.Mkfifo(path, 0o600))
	t.Cleanup(func() { // those who read it end
		if f, err := os.OpenFile(path, os.O_RDWR, 0); err == nil {
			f.Close()
		}
	})
	return Config{Kubeconfig: path}
}

// Where the disk of the configuration hangs, a call ends at its deadline, and Close ends.
func TestAHungDiskHoldsNobodyUp(t *testing.T) {
	c := New(hung(t))
	for name, call := range map[string]func(context.Context) error{
		"get":    func(ctx context.Context) error { _, err := c.Get(ctx, "x"); return err },
		"rights": c.CheckRights,
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if err := call(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: the error is %v", name, err)
		}
		cancel()
	}
	waiting := make(chan error, 1)
	go func() {
		_, err := c.Get(context.WithoutCancel(t.Context()), "x")
		waiting <- err
	}()
	if err := c.Close(); err == nil {
		t.Error("Close does not tell of the disk that does not answer")
	}
	if err := <-waiting; !errors.Is(err, ErrClosed) || !errors.Is(err, connurl.ErrNotSent) {
		t.Errorf("a call without a deadline ended with %v", err)
	}
}
