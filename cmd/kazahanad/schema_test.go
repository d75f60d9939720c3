package main

import (
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kazahana/kazahana/internal/testkit/etcdtest"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// What a newer kazahanad wrote is refused by name.
func TestNewerFormatOnEtcd(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var endpoints []string
	for _, m := range etcdtest.Cluster(t, 3, "http") {
		endpoints = append(endpoints, m.Client)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Context: t.Context()})
	must.Succeed(t, err)
	t.Cleanup(func() { _ = client.Close() })
	url := "etcd://" + strings.Join(endpoints, ",")
	d := s.Start("--provider", url)
	s.Dial().Lease()
	s.Kazahanad("seq", "orders").OK(t)
	d.Terminate()
	_, err = client.Put(t.Context(), "/kazahana/@format", "2")
	must.Succeed(t, err)
	const newer = "written by a newer kazahanad (format "
	s.Kazahanad("leases", "--config", "none", "--provider", url).Fails(t, exitFailure, "/kazahana/@format", newer, "this one knows up to 1)", "docs/compatibility.md")
	s.Start("--provider", "none:", "--store", url)
	s.Kazahanad("seq", "orders").Fails(t, exitFailure, "STORE_UNAVAILABLE", newer) // a daemon's clients hear of no path
}
