package backend_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/disktest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// notHeldUp checks that the call ends with its context, and names the file.
func notHeldUp(t *testing.T, what, path string, call func(context.Context) error) {
	t.Helper()
	await.Late(t, what, call, func(err error) bool {
		return errors.Is(err, context.DeadlineExceeded) && strings.Contains(err.Error(), path) && strings.Contains(err.Error(), "not answer")
	})
}

// A disk that is frozen holds up no caller, whether the file was open before or is
// to be opened. Once it thaws, everything goes on.
func TestFrozenDisk(t *testing.T) {
	ring.All(t)
	for name, openedBefore := range map[string]bool{"opened before": true, "opened during the freeze": false} {
		t.Run(name, func(t *testing.T) {
			disk := disktest.Ext4(t)
			path := filepath.Join(disk.Dir(), "leases.db")
			open := func() provider.Provider {
				t.Helper()
				p, err := backend.OpenProvider("sqlite:"+path, backend.ProviderOptions{LiveDir: disktest.Memory(t)})
				must.Succeed(t, err)
				return p
			}
			p := open()
			leases, err := p.Acquire(t.Context(), provider.AcquireRequest{})
			must.Succeed(t, err)
			if !openedBefore {
				must.Succeed(t, p.Close())
				p = open()
			}
			disk.Freeze()
			defer disk.Thaw()
			for range 3 {
				notHeldUp(t, "Acquire", path, func(ctx context.Context) error { // seed 003-3.2-5
					_, err := p.Acquire(ctx, provider.AcquireRequest{RequestID: "the same"})
					return err
				})
				notHeldUp(t, "Verify", path, func(ctx context.Context) error {
					_, err := provider.Verify(ctx, p, "", leases)
					return err
				})
			}
			if fenced := p.Fenced(); fenced != nil {
				t.Errorf("Fenced: %v", fenced)
			}
			disk.Thaw()
			if _, err := p.Acquire(t.Context(), provider.AcquireRequest{RequestID: "the same"}); err != nil {
				t.Errorf("after the thaw: %v", err)
			}
			if lost, err := provider.Verify(t.Context(), p, "", leases); err != nil || len(lost) != 0 {
				t.Errorf("after the thaw: %v, %v", lost, err)
			}
			records, err := p.List(t.Context(), "")
			if err != nil || len(records) != 2 {
				t.Errorf("%d records (%v), want the first and that of the repeated request", len(records), err)
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Close does not wait for a frozen disk; the file is closed when it thaws, which
// the disk's unmounting shows.
func TestCloseOnAFrozenDisk(t *testing.T) {
	ring.All(t)
	for name, openedBefore := range map[string]bool{"opened before": true, "opened during the freeze": false} {
		t.Run(name, func(t *testing.T) {
			disk := disktest.Ext4(t)
			path := filepath.Join(disk.Dir(), "leases.db")
			p, err := backend.OpenProvider("sqlite:"+path, backend.ProviderOptions{})
			must.Succeed(t, err)
			if openedBefore {
				if _, err := p.Acquire(t.Context(), provider.AcquireRequest{}); err != nil {
					t.Fatal(err)
				}
			}
			disk.Freeze()
			defer disk.Thaw()
			notHeldUp(t, "Acquire", path, func(ctx context.Context) error {
				_, err := p.Acquire(ctx, provider.AcquireRequest{})
				return err
			})
			closed := make(chan error, 1)
			go func() { closed <- p.Close() }()
			select {
			case err := <-closed:
				if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "does not answer") {
					t.Errorf("Close: %v", err)
				}
			case <-time.After(await.Patience):
				t.Error("Close waits for the disk")
			}
		})
	}
}
