package backend

import (
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/bounds"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

// gate passes bytes between clients and a server on Unix sockets. While held is locked, no answer
// passes on connections that came after mark.
type gate struct {
	marked  atomic.Bool
	held    sync.RWMutex
	waiting atomic.Int64 // answers
	conns   sync.WaitGroup
}

func newGate(t *testing.T, server string) (g *gate, sock string) {
	t.Helper()
	g, sock = &gate{}, filepath.Join(filepath.Dir(server), "gate.sock")
	l, err := net.Listen("unix", sock)
	must.Succeed(t, err)
	g.conns.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			behind, err := net.Dial("unix", server)
			if err != nil {
				_ = client.Close()
				continue
			}
			late := g.marked.Load()
			end := func() { _, _ = client.Close(), behind.Close() }
			g.conns.Go(func() { defer end(); _, _ = io.Copy(behind, client) })
			g.conns.Go(func() { defer end(); g.answer(client, behind, late) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); g.conns.Wait() })
	return g, sock
}

func (g *gate) answer(client, server net.Conn, late bool) {
	b := make([]byte, 64<<10)
	for {
		n, err := server.Read(b)
		if err != nil {
			return
		}
		if late {
			g.waiting.Add(1)
			g.held.RLock()
			g.waiting.Add(-1)
			g.held.RUnlock()
		}
		if _, err := client.Write(b[:n]); err != nil {
			return
		}
	}
}

// A flood of requests for locks, none of which the store answers, does not make the calls of the
// keeper late: leases have a connection and turns of their own.
func TestLeasesDoNotWaitForLocks(t *testing.T) {
	g, sock := newGate(t, redistest.New(t).Sock)
	ctx := within(t)
	leases, err := OpenProvider("redis+unix:"+sock, ProviderOptions{})
	must.Succeed(t, err)
	defer leases.Close()
	must.Succeed(t, leases.Init(ctx, ""))
	granted, err := leases.Acquire(ctx, provider.AcquireRequest{RequestID: strings.Repeat("f", 32)})
	must.Succeed(t, err)
	g.marked.Store(true)
	store, err := OpenStore("redis+unix:"+sock, StoreOptions{})
	must.Succeed(t, err)
	defer store.Close()
	must.Succeed(t, store.Init(ctx))
	g.held.Lock()
	pass := sync.OnceFunc(g.held.Unlock)
	defer pass()
	var flood sync.WaitGroup
	var answered atomic.Int64
	for i := range 2048 {
		flood.Go(func() { // on a slow machine it may fail: it only stands in the way
			_, err := store.Locks.Do(ctx, lock.Request{Op: lock.Acquire, Tenant: "default", Key: fmt.Sprint(i), Owner: "o", LeaseID: lock.NewLeaseID(), TTLMS: 60_000})
			if err == nil {
				answered.Add(1)
			}
		})
	}
	await.Eventually(t, "the store is asked", func() bool { return g.waiting.Load() > 0 })
	for i := range 10 {
		await.Success(t, "a lease is granted", func() error {
			_, err := leases.Acquire(t.Context(), provider.AcquireRequest{RequestID: fmt.Sprintf("%032x", i)})
			return err
		})
		await.Success(t, "a lease is verified", func() error {
			lost, err := leases.Verify(t.Context(), "", []provider.Claim{provider.ClaimOf(granted[0])})
			if err == nil && len(lost) > 0 {
				t.Errorf("%v are lost", lost)
			}
			return err
		})
	}
	if n := answered.Load(); n > 0 {
		t.Errorf("%d of the flood were answered: it did not stand in the way", n)
	}
	pass()
	flood.Wait()
}

// Leases are outside of the limits of a store that is full.
func TestLeasesOfAFullStore(t *testing.T) {
	ctx := within(t)
	const keys = 8
	url := "redis+unix:" + redistest.New(t).Sock
	store, err := OpenStore(url, StoreOptions{Limits: bounds.Limits{Keys: keys}})
	must.Succeed(t, err)
	defer store.Close()
	must.Succeed(t, store.Init(ctx))
	do := func(op lock.Op, key, lease string) error {
		r := lock.Request{Op: op, Tenant: "default", Key: key, Owner: "o", LeaseID: lease}
		if op != lock.Release {
			r.TTLMS = 3_600_000
		}
		_, err := store.Locks.Do(bounds.Pay(ctx, "UID 1"), r)
		return err
	}
	ids := map[string]string{}
	for n := 0; ; n++ {
		key, lease := fmt.Sprint(n), lock.NewLeaseID()
		err := do(lock.Acquire, key, lease)
		if errors.As(err, new(*record.FullError)) {
			break
		}
		must.Succeed(t, err)
		if ids[key] = lease; n > keys {
			t.Fatal("the store is never full")
		}
	}
	for key, lease := range ids {
		must.Succeed(t, do(lock.Renew, key, lease))
	}
	must.Succeed(t, do(lock.Release, "0", ids["0"]))
	leases, err := OpenProvider(url, ProviderOptions{})
	must.Succeed(t, err)
	defer leases.Close()
	must.Succeed(t, leases.Init(ctx, ""))
	for i := range 2 * keys {
		if _, err := leases.Acquire(ctx, provider.AcquireRequest{RequestID: fmt.Sprintf("%032x", i)}); err != nil {
			t.Errorf("lease %d: %v", i, err)
		}
	}
}
