package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/testkit/etcdtest"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

// On Redis the leases and the store have a fence each, and each command ends its own.
func TestStoreInitOnRedis(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	server := redistest.NewWithPort(t, "--appendonly", "yes", "--appendfsync", "always")
	url := fmt.Sprintf("redis://127.0.0.1:%d/0", server.Port)
	s.Start("--provider", "static:7", "--store", url)
	leased := []string{"run", "--config", "none", "-q", "--wait", "0s", "--provider", url, "--", "true"}
	declare := func(area string, args ...string) []string {
		return append([]string{area, "init", "--config", "none"}, args...)
	}
	s.Kazahanad("seq", "orders").Fails(t, exitFailure, "SEQUENCE_FENCED", "kazahanad store init")
	s.Kazahanad(leased...).Fails(t, exitFailure, "grants are refused until ", "kazahanad leases init")

	s.Kazahanad(declare("leases", "--provider", url)...).OK(t)
	s.Kazahanad(leased...).OK(t)
	s.Kazahanad("seq", "orders").Fails(t, exitFailure, "SEQUENCE_FENCED", "kazahanad store init")

	if text := s.Kazahanad(declare("store", "--store", url)...).OK(t); !strings.Contains(text, "is declared new") {
		t.Errorf("it says %q", text)
	}
	s.Kazahanad("seq", "orders").OK(t)
	if text := s.Kazahanad(declare("store", "--provider", url)...).OK(t); !strings.Contains(text, "nothing is held back") {
		t.Errorf("a second time it says %q", text)
	}

	server.Restart()
	s.Kazahanad(declare("store", "--provider", url)...).Fails(t, exitUsage, "--yes", "was used before")
	s.Kazahanad(declare("store", "--provider", url, "--yes")...).OK(t)
	s.Kazahanad("seq", "orders").OK(t)
	s.Kazahanad(leased...).Fails(t, exitFailure, "grants are refused until ", "was restarted")
}

// A lease server that owns the store's file does what a command on its host asks for.
func TestStoreOfALeaseServer(t *testing.T) {
	t.Parallel()
	far, s := newSite(t), newSite(t)
	server := far.StartLeaseServer("127.0.0.1:0", "--provider", "sqlite:"+far.Leases())
	s.Start("--provider", "static:7", "--store", server.URL())
	s.Kazahanad("seq", "orders").OK(t)
	on := []string{"--config", "none", "--provider", "sqlite:" + far.Leases()}
	if text := s.Kazahanad(append([]string{"store", "fence"}, on...)...).OK(t); !strings.Contains(text, "store.db: no lock is granted until ") {
		t.Errorf("fence says %q", text)
	}
	s.Kazahanad("seq", "orders").Fails(t, exitFailure, "SEQUENCE_FENCED", "kazahanad store init")
	s.Kazahanad(append([]string{"store", "init"}, on...)...).Fails(t, exitUsage, "--yes", "was used before")
	s.Kazahanad(append([]string{"store", "init", "--yes"}, on...)...).OK(t)
	s.Kazahanad("seq", "orders").OK(t)
}

// TestFencesByHand: on each server an operator fences the leases and the store, each for itself.
func TestFencesByHand(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]string{
		"redis": "redis+unix:" + redistest.New(t).Sock,
		"etcd":  "etcd://" + etcdtest.Cluster(t, 1, "http")[0].Client,
	} {
		s := newSite(t)
		on := func(area, do string, more ...string) []string {
			return append([]string{area, do, "--config", "none", "--provider", url}, more...)
		}
		s.Kazahanad(on("leases", "init")...).OK(t)
		s.Kazahanad(on("store", "init")...).OK(t)
		s.Start("--provider", "static:7", "--store", url)
		leased := []string{"run", "--config", "none", "-q", "--wait", "0s", "--provider", url, "--", "true"}
		s.Kazahanad(leased...).OK(t)
		s.Kazahanad("seq", "orders").OK(t)
		if text := s.Kazahanad(on("leases", "fence")...).OK(t); !strings.Contains(text, ": no machine ID is granted until ") {
			t.Errorf("%s: leases fence says %q", name, text)
		}
		s.Kazahanad(leased...).Fails(t, exitFailure, "grants are refused until ", "kazahanad leases fence", "kazahanad leases init")
		s.Kazahanad("seq", "orders").OK(t)
		if text := s.Kazahanad(on("store", "fence")...).OK(t); !strings.Contains(text, ": no lock is granted until ") {
			t.Errorf("%s: store fence says %q", name, text)
		}
		s.Kazahanad("seq", "orders").Fails(t, exitFailure, "SEQUENCE_FENCED", "kazahanad store fence", "kazahanad store init")
		s.Kazahanad("lock", "-q", "report", "--", "true").Fails(t, exitFailure, "LOCK_FENCED")
		if text := s.Kazahanad("status").OK(t); strings.Count(text, "held back") != 1 || !strings.Contains(text, "kazahanad store init") {
			t.Errorf("%s: status says %q", name, text)
		}
		s.Kazahanad(on("leases", "init")...).Fails(t, exitUsage, "--yes")
		s.Kazahanad(on("leases", "init", "--yes")...).OK(t)
		s.Kazahanad(leased...).OK(t)
		s.Kazahanad("seq", "orders").Fails(t, exitFailure, "SEQUENCE_FENCED")
		s.Kazahanad(on("store", "init", "--yes")...).OK(t)
		s.Kazahanad("seq", "orders").OK(t)
		s.Kazahanad("lock", "-q", "report", "--", "true").OK(t)
	}
}

// A fence that another operator has ended before it is seen is no success.
func TestFenceThatIsEndedMeanwhile(t *testing.T) {
	t.Parallel()
	if f, err := stillFenced[backend.Fence]("etcd://e", nil, nil); f != nil || err == nil || !strings.Contains(err.Error(), "etcd://e: the fence has been ended already") {
		t.Errorf("of a fence that is gone it is said %+v, %v", f, err)
	}
	if f, err := stillFenced("etcd://e", &backend.Fence{UntilMS: 7}, nil); err != nil || f.UntilMS != 7 {
		t.Errorf("of a fence it is said %+v, %v", f, err)
	}
	if _, err := stillFenced[backend.Fence]("etcd://e", nil, context.Canceled); err != context.Canceled {
		t.Errorf("the error became %v", err)
	}
}

// What cannot be declared new or fenced says so.
func TestStoreInitRefuses(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "no.db")
	refuses := func(what, store string, code int, want ...string) {
		t.Helper()
		typed(t, "store", what, "--config", "none", "--store", store).Fails(t, code, want...)
	}
	for _, what := range []string{"init", "fence"} {
		refuses(what, "none", exitUsage, "there is no store", "--store")
		refuses(what, "http://127.0.0.1:1", exitFailure, "http://127.0.0.1:1", "where the lease server keeps it")
		refuses(what, "sqlite:"+missing, exitFailure, "no.db", "there is no such file")
	}
	for _, what := range []string{"init", "fence"} {
		refuses(what, "memory:", exitFailure, "in the memory of the process")
		refuses(what, "redis://127.0.0.1:1/0", exitFailure, "refused")
	}
	typed(t, "store").Fails(t, exitUsage, "init, fence")
}
