package lock_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kazahana/kazahana/internal/conn/etcdconn"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/lock/locktest"
	"github.com/kazahana/kazahana/internal/record/etcd"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/etcdtest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// inEtcd closes the client with the store.
type inEtcd struct {
	*lock.Records
	records *etcd.Store
	conn    *etcdconn.Client
}

func (e inEtcd) Close() error { return errors.Join(e.records.Close(), e.conn.Close()) }

func openEtcd(cfg etcdconn.Config) (inEtcd, error) {
	conn, err := etcdconn.Open(cfg)
	if err != nil {
		return inEtcd{}, err
	}
	records := etcd.New(conn, area, nil)
	return inEtcd{lock.OnRecords(records), records, conn}, nil
}

func TestEtcd(t *testing.T) {
	locktest.Run(t, func(t *testing.T) locktest.Backend {
		cfg := etcdtest.Shared(t)
		return locktest.Backend{
			Open: func() (lock.Store, error) { return openEtcd(cfg) },
			Restart: func() error {
				m := etcdtest.SharedMember()
				m.Kill()
				if err := m.Start(); err != nil {
					return err
				}
				return etcdtest.Writable(m)
			},
			MinTTL:  2 * time.Second,
			NoClock: true,
		}
	})
}

func configOf(members []*etcdtest.Member) etcdconn.Config {
	cfg := etcdconn.Config{Prefix: etcdconn.DefaultPrefix}
	for _, m := range members {
		cfg.Endpoints = append(cfg.Endpoints, m.Client)
	}
	return cfg
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// Clients of a cluster with members that are frozen and killed, one after the other, see one
// lock, with any outcome of the requests under way.
func TestEtcdChaos(t *testing.T) {
	ring.Deep(t)
	const (
		clients  = 4
		between  = time.Second
		some     = 40 // calls while all members are there
		patience = 600 * time.Millisecond
	)
	members := etcdtest.Cluster(t, 3, "http")
	var stores []lock.Store
	var seen outcomes
	for range clients {
		stores = append(stores, watched{mustOpenEtcd(t, configOf(members)), &seen})
	}
	hammered(t, stores, locktest.Allowed{NoClock: true, Resends: true}, time.Second, patience, func() {
		for _, m := range members { // one of them leads
			more(t, &seen.answers, some)
			m.Signal(syscall.SIGSTOP)
			time.Sleep(between)
			m.Signal(syscall.SIGCONT)
			time.Sleep(between)
			m.Kill()
			must.Succeed(t, m.Start())
		}
		more(t, &seen.answers, some)
	})
}

func mustOpenEtcd(t *testing.T, cfg etcdconn.Config) inEtcd {
	t.Helper()
	s, err := openEtcd(cfg)
	must.Succeed(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// A user needs to read and write the records, and nothing else.
func TestEtcdRights(t *testing.T) {
	members := etcdtest.Cluster(t, 1, "http")
	admin, err := etcdtest.NewClient(clientv3.Config{Endpoints: configOf(members).Endpoints})
	must.Succeed(t, err)
	defer admin.Close()
	ctx := testContext(t)
	from := etcdconn.DefaultPrefix + "@store/"
	done := func(_ any, err error) {
		t.Helper()
		must.Succeed(t, err)
	}
	done(admin.RoleAdd(ctx, "locks"))
	done(admin.RoleGrantPermission(ctx, "locks", from, clientv3.GetPrefixRangeEnd(from), clientv3.PermissionType(clientv3.PermReadWrite)))
	for user, role := range map[string]string{"kazahana": "locks", "nobody": "", "root": "root"} {
		done(admin.UserAdd(ctx, user, "secret"))
		if role != "" {
			done(admin.UserGrantRole(ctx, user, role))
		}
	}
	done(admin.AuthEnable(ctx))
	cfg := configOf(members)
	cfg.Username, cfg.PasswordFile = "kazahana", filepath.Join(t.TempDir(), "password")
	must.Succeed(t, os.WriteFile(cfg.PasswordFile, []byte("secret\n"), 0o600))
	s := mustOpenEtcd(t, cfg)
	var tokens <-chan struct{}
	await.Success(t, "a subscription", func() (err error) { // a try may end while the server works at the password
		tokens, err = s.Notify(ctx, tenant, key)
		return err
	})
	acquire := lock.Request{Op: lock.Acquire, Tenant: tenant, Key: key, Owner: "alice", RequestID: "1", LeaseID: lock.NewLeaseID(), TTLMS: 60_000}
	renew := lock.Request{Op: lock.Renew, Tenant: tenant, Key: key, Owner: "alice", TTLMS: 60_000}
	longer, release := renew, renew
	longer.TTLMS, release.Op, release.TTLMS = 3_600_000, lock.Release, 0
	for _, q := range []lock.Request{acquire, acquire, renew, longer, release} {
		if _, err := s.Do(ctx, q); err != nil {
			t.Errorf("%v: %v", q.Op, err)
		}
	}
	if _, err := s.List(ctx, tenant, "", 1); err != nil {
		t.Error(err)
	}
	select {
	case <-tokens:
	case <-ctx.Done():
		t.Error("there is no token for the release")
	}
	cfg.Username = "nobody"
	other := mustOpenEtcd(t, cfg)
	if l, err := other.Do(ctx, acquire); lock.IsAnswer(err) {
		t.Errorf("without the role: %+v, %v", l, err)
	}
	if _, err := other.Notify(ctx, tenant, key); err == nil {
		t.Error("without the role, there is a subscription")
	}
}
