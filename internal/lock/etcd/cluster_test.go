package etcd

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	etcdconn "github.com/kazahana/kazahana/internal/conn/etcd"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/lock/locktest"
	"github.com/kazahana/kazahana/internal/testkit/etcdtest"
)

func configOf(members []*etcdtest.Member) etcdconn.Config {
	cfg := etcdconn.Config{Prefix: etcdconn.DefaultPrefix}
	for _, m := range members {
		cfg.Endpoints = append(cfg.Endpoints, m.Client)
	}
	return cfg
}

// What clients see of a cluster whose members are frozen and killed, one after
// the other, is what a lock can do, whatever became of the requests under way.
func TestChaos(t *testing.T) {
	const (
		clients  = 4
		between  = time.Second
		patience = 600 * time.Millisecond
	)
	members := etcdtest.Cluster(t, 3, "http")
	var stores []lock.Store
	for range clients {
		s, err := open(configOf(members))
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		stores = append(stores, s)
	}
	ctx, cancel := context.WithCancel(testContext(t))
	done := make(chan struct{})
	go func() {
		defer close(done)
		calls, unknown, err := locktest.Hammer(ctx, stores, locktest.Allowed{NoClock: true, Resends: true}, time.Second, patience)
		if err != nil {
			t.Error(err)
		}
		t.Logf("%d calls, of %d nobody knows the outcome", calls, unknown)
		if calls < 100 || unknown > calls/2 {
			t.Error("the test does not show what it should")
		}
	}()
	for _, m := range members { // one of them leads
		time.Sleep(between)
		m.Signal(syscall.SIGSTOP)
		time.Sleep(between)
		m.Signal(syscall.SIGCONT)
		time.Sleep(between)
		m.Kill()
		if err := m.Start(); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(between)
	cancel()
	<-done
}

// A user needs to read and write below the prefix, and nothing else.
func TestRights(t *testing.T) {
	members := etcdtest.Cluster(t, 1, "http")
	admin, err := etcdtest.NewClient(clientv3.Config{Endpoints: configOf(members).Endpoints})
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	ctx := testContext(t)
	from := etcdconn.DefaultPrefix + "@lock/"
	for _, step := range []func() error{
		func() error { _, err := admin.RoleAdd(ctx, "locks"); return err },
		func() error {
			_, err := admin.RoleGrantPermission(ctx, "locks", from, clientv3.GetPrefixRangeEnd(from), clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		},
		func() error { _, err := admin.UserAdd(ctx, "kazahana", "secret"); return err },
		func() error { _, err := admin.UserGrantRole(ctx, "kazahana", "locks"); return err },
		func() error { _, err := admin.UserAdd(ctx, "nobody", "secret"); return err },
		func() error { _, err := admin.UserAdd(ctx, "root", "root"); return err },
		func() error { _, err := admin.UserGrantRole(ctx, "root", "root"); return err },
		func() error { _, err := admin.AuthEnable(ctx); return err },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	cfg := configOf(members)
	cfg.Username, cfg.PasswordFile = "kazahana", filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(cfg.PasswordFile, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &rig{T: t, cfg: cfg, store: mustOpen(t, cfg)}
	tokens, err := r.store.Notify(ctx, "t", "a")
	if err != nil {
		t.Fatal(err)
	}
	q := r.request(lock.Acquire, "a", time.Minute)
	r.do(q)
	r.do(q)
	first := r.known("a").lease
	r.do(r.request(lock.Renew, "a", time.Minute))
	r.do(r.request(lock.Renew, "a", time.Hour))
	if page, err := r.store.List(ctx, "t", "", 1); err != nil || len(page) != 1 {
		t.Errorf("listed are %+v, %v", page, err)
	}
	r.do(r.request(lock.Release, "a", 0))
	select {
	case <-tokens:
	case <-ctx.Done():
		t.Error("the release is not told")
	}
	r.leaseEnds("the etcd lease before", first)
	s := mustOpen(t, cfg)
	ahead(s, lock.MaxTTL+lock.KeepIdle)
	if err := sweepAll(s); err != nil {
		t.Error(err)
	}
	cfg.Username = "nobody"
	s = mustOpen(t, cfg)
	if l, err := s.Do(ctx, q); err == nil || lock.IsAnswer(err) {
		t.Errorf("without the role: %+v, %v", l, err)
	}
	if _, err := s.Notify(ctx, "t", "a"); err == nil {
		t.Error("without the role, it is said that releases will be told")
	}
}
