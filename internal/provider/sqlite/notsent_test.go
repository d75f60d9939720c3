package sqlite

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	sqlitefile "github.com/kazahana/kazahana/internal/conn/sqlite"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

// lately is a deadline that what hangs will miss.
func lately(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

func mustAcquire(t *testing.T, p *Provider) lease.Lease {
	t.Helper()
	leases, err := p.Acquire(context.Background(), provider.AcquireRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return leases[0]
}

func releaseOf(l lease.Lease) provider.ReleaseRequest {
	at := time.Now().UnixMilli()
	return provider.ReleaseRequest{ID: l.ID, BitSeq: l.BitSeq, TimestampMS: at, Signature: lease.Sign(l.Secret, l.ID, at)}
}

func isHeld(t *testing.T, p *Provider, l lease.Lease) bool {
	t.Helper()
	lost, err := provider.Verify(context.Background(), p, "", []lease.Lease{l})
	if err != nil {
		t.Fatal(err)
	}
	return len(lost) == 0
}

// hang has the worker hang at the step, until the function that it returns is
// called. hanging is closed when it does.
func hang(p *Provider, at string) (hanging <-chan struct{}, goOn func()) {
	begun, end := make(chan struct{}), make(chan struct{})
	first := true
	p.at = func(step string) error {
		if step == at && first {
			first = false
			close(begun)
			<-end
		}
		return nil
	}
	return begun, func() { close(end) }
}

func TestReleaseWhereTheFileIsGone(t *testing.T) {
	path := madeFile(t)
	p := mustOpen(t, Config{Path: path, Services: defaultServices()})
	l := mustAcquire(t, p)
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	if err := p.Release(context.Background(), releaseOf(l)); !errors.Is(err, provider.ErrNotSent) || !errors.Is(err, sqlitefile.ErrMoved) {
		t.Errorf("the error is %v, want ErrNotSent and ErrMoved", err)
	}
	if err := os.Rename(path+".away", path); err != nil {
		t.Fatal(err)
	}
	if !isHeld(t, p, l) {
		t.Error("the lease was released")
	}
}

func TestReleaseWithoutTheLock(t *testing.T) {
	path := madeFile(t)
	p := mustOpen(t, Config{Path: path, Services: defaultServices()})
	l := mustAcquire(t, p)
	unlock := lockFile(t, path)
	if err := p.Release(lately(t), releaseOf(l)); !errors.Is(err, provider.ErrNotSent) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the error is %v, want ErrNotSent and DeadlineExceeded", err)
	}
	unlock()
	if !isHeld(t, p, l) {
		t.Error("the lease was released")
	}
	if err := p.Release(context.Background(), releaseOf(l)); err != nil || isHeld(t, p, l) {
		t.Errorf("with the lock: %v", err)
	}
}

// A release whose caller leaves while it waits for the worker, or for its turn in a
// group, is not carried out later.
func TestReleaseThatLeavesTheGroup(t *testing.T) {
	for _, step := range []string{sqlitefile.StepBegun, sqlitefile.StepWritten} {
		p := mustOpen(t, Config{Path: madeFile(t), Services: defaultServices()})
		l := mustAcquire(t, p)
		hanging, goOn := hang(p, step)
		other := make(chan error, 1)
		go func() {
			_, err := p.Acquire(context.Background(), provider.AcquireRequest{})
			other <- err
		}()
		<-hanging
		if err := p.Release(lately(t), releaseOf(l)); !errors.Is(err, provider.ErrNotSent) {
			t.Errorf("behind an operation at %q: the error is %v, want ErrNotSent", step, err)
		}
		goOn()
		if err := <-other; err != nil {
			t.Error(err)
		}
		if !isHeld(t, p, l) {
			t.Errorf("behind an operation at %q: the lease was released later", step)
		}
	}
}

// A release that the worker has accepted and not yet begun when its caller leaves:
// who comes first decides, and both know.
func TestReleaseTakenByTheWorker(t *testing.T) {
	for step, sent := range map[string]bool{sqlitefile.StepBegun: false, sqlitefile.StepWritten: true} {
		p := mustOpen(t, Config{Path: madeFile(t), Services: defaultServices()})
		l := mustAcquire(t, p)
		hanging, goOn := hang(p, step)
		ctx, leave := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- p.Release(ctx, releaseOf(l)) }()
		<-hanging
		leave()
		if err := <-done; err == nil || errors.Is(err, provider.ErrNotSent) == sent {
			t.Errorf("the worker hangs at %q: the error is %v, want one of which ErrNotSent is %v", step, err, !sent)
		}
		goOn()
		if !isHeld(t, p, l) {
			t.Errorf("the worker hung at %q: the release was committed although nobody was there", step)
		}
	}
}

func TestReleaseThatFails(t *testing.T) {
	p := mustOpen(t, Config{Path: madeFile(t), Services: defaultServices()})
	l := mustAcquire(t, p)
	broken := errors.New("broken")
	for step, sent := range map[string]bool{sqlitefile.StepBegun: false, sqlitefile.StepWritten: true, sqlitefile.StepCommitted: true} {
		p.at = func(at string) error {
			if at == step {
				return broken
			}
			return nil
		}
		if err := p.Release(context.Background(), releaseOf(l)); !errors.Is(err, broken) || errors.Is(err, provider.ErrNotSent) == sent {
			t.Errorf("at %q: the error is %v, want one of which ErrNotSent is %v", step, err, !sent)
		}
	}
}
