package etcd_test

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/etcdtest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// callTime is what the keeper gives one call by default.
const callTime = 3 * time.Second

// eventually calls f, each time with callTime, until it succeeds.
func eventually(t *testing.T, what string, f func(context.Context) error) {
	t.Helper()
	await.Success(t, what, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), callTime)
		defer cancel()
		return f(ctx)
	})
}

func TestLeasesWhereMembersAreLost(t *testing.T) {
	t.Parallel()
	members := etcdtest.Cluster(t, 3, "http")
	p := mustOpen(t, configOf(members...), options{})
	var held []lease.Lease
	acquire := func(ctx context.Context) error {
		leases, err := p.Acquire(ctx, provider.AcquireRequest{RequestID: provider.NewSecret()})
		held = append(held, leases...)
		return err
	}
	eventually(t, "three members", acquire)
	lead := leader(t, members)
	lead.Kill()
	for range 20 {
		eventually(t, "two members", acquire)
	}
	giveBack(t, p, held[0])

	second := members[0]
	if second == lead {
		second = members[1]
	}
	second.Kill()
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	err := acquire(ctx)
	cancel()
	if err == nil || !strings.Contains(err.Error(), "majority") {
		t.Errorf("one member of three: %v, want an error that says what is wrong", err)
	}

	for _, m := range []*member{lead, second} {
		must.Succeed(t, m.Start())
	}
	eventually(t, "all back", acquire)
	noneTwice(t, held)
	if lost, err := provider.Verify(testContext(t), p, "", held); err != nil || len(lost) != 1 {
		t.Errorf("%d leases were lost (%v), want the one given back", len(lost), err)
	}
}

// A member that has lost its leader says so: calls fail with that, and without using up
// their time.
func TestLeasesWithoutLeader(t *testing.T) {
	t.Parallel()
	members := etcdtest.Cluster(t, 3, "http")
	alone := members[0]
	p := mustOpen(t, configOf(alone), options{})
	acquire := func(ctx context.Context) error {
		_, err := p.Acquire(ctx, provider.AcquireRequest{})
		return err
	}
	eventually(t, "three members", acquire)
	cl, err := etcdtest.NewClient(clientv3.Config{Endpoints: []string{alone.Client}})
	must.Succeed(t, err)
	defer cl.Close()
	members[1].Kill()
	members[2].Kill()
	eventually(t, "the member knows that it has no leader", func(ctx context.Context) error {
		status, err := cl.Status(ctx, alone.Client)
		if err == nil && status.Leader != 0 {
			err = errors.New("it has a leader")
		}
		return err
	})
	for name, call := range map[string]func(context.Context) error{
		"Acquire": acquire,
		"List":    func(ctx context.Context) error { _, err := p.List(ctx, ""); return err },
	} {
		err := call(testContext(t))
		if err == nil || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no leader") {
			t.Errorf("%s without a leader: %v", name, err)
		}
	}
}

// leader is the member that leads, as soon as one does.
func leader(t *testing.T, members []*member) (lead *member) {
	t.Helper()
	eventually(t, "a leader", func(ctx context.Context) error {
		for _, m := range members {
			cl, err := etcdtest.NewClient(clientv3.Config{Endpoints: []string{m.Client}})
			if err != nil {
				return err
			}
			status, err := cl.Status(ctx, m.Client)
			_ = cl.Close()
			if err != nil {
				return err
			}
			if status.Leader == status.Header.MemberId {
				lead = m
				return nil
			}
		}
		return errors.New("nobody leads")
	})
	return lead
}

// A member that hangs keeps its connections: nothing but time tells.
func TestLeasesOnAHungServer(t *testing.T) {
	m := etcdtest.Cluster(t, 1, "http")[0]
	p := mustOpen(t, configOf(m), options{})
	l, err := p.Acquire(testContext(t), provider.AcquireRequest{})
	must.Succeed(t, err)
	m.Signal(syscall.SIGSTOP)
	await.Stopped(t, m.PID())
	req := provider.AcquireRequest{RequestID: provider.NewSecret()}
	for name, call := range map[string]func(context.Context) error{
		"Acquire": func(ctx context.Context) error { _, err := p.Acquire(ctx, req); return err },
		"Verify":  func(ctx context.Context) error { _, err := provider.Verify(ctx, p, "", l); return err },
		"Extend":  func(ctx context.Context) error { _, err := provider.Extend(ctx, p, "", l[0]); return err },
		"Release": func(ctx context.Context) error {
			return p.Release(ctx, providertest.SignedRelease(l[0], time.Now().UnixMilli()))
		},
	} {
		// Seed 003-3.2-5.
		await.Late(t, name, call, func(err error) bool {
			return errors.Is(err, context.DeadlineExceeded) && strings.Contains(err.Error(), m.Client) && strings.Contains(err.Error(), "answer in time")
		})
	}
	m.Signal(syscall.SIGCONT)
	eventually(t, "running again", func(ctx context.Context) error { _, err := p.Acquire(ctx, req); return err })
}

// One hung member of three costs a part of the time that a call has.
func TestLeasesWhereOneOfThreeHangs(t *testing.T) {
	ring.Deep(t)
	t.Parallel()
	members := etcdtest.Cluster(t, 3, "http")
	p := mustOpen(t, configOf(members...), options{})
	acquire := func(ctx context.Context) error {
		_, err := p.Acquire(ctx, provider.AcquireRequest{})
		return err
	}
	eventually(t, "three members", acquire)
	follower := members[0]
	if follower == leader(t, members) {
		follower = members[1]
	}
	follower.Signal(syscall.SIGSTOP)
	await.Stopped(t, follower.PID())
	failed := 0
	for range 5 {
		ctx, cancel := context.WithTimeout(context.Background(), 10*callTime)
		if err := acquire(ctx); err != nil {
			failed++
			t.Logf("%v", err)
		}
		cancel()
	}
	if failed > 1 {
		t.Errorf("%d acquires of 5 failed although two members of three are well", failed)
	}
}
