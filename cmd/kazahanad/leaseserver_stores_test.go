package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/backend"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
)

// Several lease servers in front of one store are one server: when one is
// killed, the other goes on with everything that the first was asked.
func TestLeaseServersShareAStore(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*site) (url string){
		"redis": func(s *site) string { return s.Initialised(s.StartRedis().URL() + "ids=0-99") },
		"etcd": func(s *site) string {
			var clients []string
			for _, m := range s.StartEtcd() {
				clients = append(clients, m.Client)
			}
			return "etcd://" + strings.Join(clients, ",") + "?ids=0-99"
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			store := open(s)
			first := s.StartLeaseServer("127.0.0.1:0", "--provider", store)
			second := s.StartLeaseServer("127.0.0.1:0", "--provider", store)
			await.Eventually(t, "both servers reach their store", func() bool { return first.Ready() && second.Ready() })
			both := askLeaseServers(t, first.URL()+","+second.URL())

			before := provider.NewSecret()
			held := both.acquire(before)
			// Whichever instance is asked, a request has one answer.
			for _, l := range []*testkit.LeaseServer{first, second} {
				if again := askLeaseServers(t, l.URL()).acquire(before); !slices.Equal(again, held) {
					t.Errorf("%s answers %v, and the other server %v", l.Address, again, held)
				}
			}

			first.Kill()
			if again := both.acquire(before); !slices.Equal(again, held) {
				t.Errorf("after the kill the request repeated gives %v, want %v", again, held)
			}
			after := provider.NewSecret()
			renewed := both.acquire(after)
			if len(held) != 2 || len(renewed) != 2 || noID(held, renewed[0].ID) != noID(held, renewed[1].ID) || !noID(held, renewed[0].ID) {
				t.Errorf("granted %v, then %v", held, renewed)
			}
			longer, err := provider.Extend(t.Context(), both.Provider, "", held[0])
			if err != nil || longer.Expired < held[0].Expired || longer.Secret != held[0].Secret {
				t.Errorf("%v extended at the other server is %v: %v", held[0], longer, err)
			}
			for _, l := range []lease.Lease{longer, renewed[0]} {
				both.release(l)
			}
			both.lost(append(held, renewed...), held[0], renewed[0])
			if _, err := both.Acquire(t.Context(), provider.AcquireRequest{RequestID: before}); !errors.Is(err, provider.ErrConflict) {
				t.Errorf("a request whose lease was given back: %v", err)
			}

			// The killed one comes back to what the other did meanwhile.
			first = s.StartLeaseServer(first.Address, "--provider", store)
			back := askLeaseServers(t, first.URL())
			back.lost(append(held, renewed...), held[0], renewed[0])
			back.release(renewed[1])
			both.lost(renewed, renewed...)

			// And tells what its store remembers.
			inner, err := backend.Open(store, backend.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer inner.Close()
			tl := snowflake.DefaultTimeline()
			id := (held[0].Created-1-tl.EpochMS)<<(snowflake.ValueBits-tl.BitTS) | held[0].Slot().Start
			var in inspectedJSON
			testkit.DecodeJSON(t, s.Kazahanad("inspect", "--json", "--provider", first.URL(), fmt.Sprint(id)).OK(t), &in)
			if history := inner.Info().History; history == "" || in.Note != "nobody known: the history keeps "+history {
				t.Errorf("inspect says %+v, and the store keeps %q", in, history)
			}
		})
	}
}

func noID(leases []lease.Lease, id int64) bool {
	return !slices.ContainsFunc(leases, func(l lease.Lease) bool { return l.ID == id })
}

// leaseServersClient is the http provider, as a daemon has it.
type leaseServersClient struct {
	provider.Provider
	t *testing.T
}

func askLeaseServers(t *testing.T, url string) *leaseServersClient {
	t.Helper()
	p, err := backend.Open(url, backend.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return &leaseServersClient{p, t}
}

// acquire asks for two leases.
func (c *leaseServersClient) acquire(requestID string) []lease.Lease {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), await.Patience)
	defer cancel()
	leases, err := c.Acquire(ctx, provider.AcquireRequest{RequestID: requestID, ThroughputPerMS: 512})
	if err != nil {
		c.t.Fatal(err)
	}
	return leases
}

func (c *leaseServersClient) release(l lease.Lease) {
	c.t.Helper()
	at := l.Expired - 1
	err := c.Release(c.t.Context(), provider.ReleaseRequest{
		ID: l.ID, BitSeq: l.BitSeq, TimestampMS: at, Signature: lease.Sign(l.Secret, l.ID, at), AtEnd: true,
	})
	if err != nil {
		c.t.Errorf("release of %v: %v", l, err)
	}
}

// lost checks which of the leases are no longer the caller's.
func (c *leaseServersClient) lost(asked []lease.Lease, want ...lease.Lease) {
	c.t.Helper()
	got, err := provider.Verify(c.t.Context(), c.Provider, "", asked)
	if err != nil || !slices.Equal(got, want) {
		c.t.Errorf("lost are %v (%v), want %v", got, err, want)
	}
}
