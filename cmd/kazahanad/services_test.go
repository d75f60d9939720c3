package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/wire"
)

// configured is a daemon with a configuration file.
func (s *site) configured(lines ...string) *testkit.Instance {
	s.T.Helper()
	path := s.Path("kazahanad.yaml")
	testkit.WriteFile(s.T, path, fmt.Sprintf("socket: %s\nstate_dir: %s\n%s\n", s.Socket, s.State, strings.Join(lines, "\n")))
	s.Kazahanad("serve", "--check", "--config", path).OK(s.T)
	d := s.LaunchCommand(s.Command("serve", "--config", path))
	d.AwaitReady()
	return d
}

// take asks for many IDs of a service.
func (s *site) take(service string, batches, size int, options map[string]any) (ids []uint64) {
	s.T.Helper()
	c := s.Dial()
	all := map[string]any{"service": service}
	maps.Copy(all, options)
	for range batches {
		ids = append(ids, c.IDs(size, all)...)
	}
	if !testkit.Ascending(ids) {
		s.T.Errorf("the IDs of %s do not ascend", service)
	}
	return ids
}

// Services of one pool share the space of regular IDs, and never an ID.
func TestServicesDoNotCollide(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	args := []string{
		fmt.Sprintf("provider: \"sqlite:%s\"", s.Leases()),
		"service: orders",
		"startup_wait: 30s",
		"services:",
		"  users: {max_throughput_per_ms: 512}",
		"  invoices: {sequence_start: zero, fallback: none}",
	}
	d := s.configured(args...)
	names := []string{"", "users", "invoices"}
	var all []uint64
	for life := range 2 {
		got := make([][]uint64, len(names))
		var together sync.WaitGroup
		for i, name := range names {
			together.Go(func() { got[i] = s.take(name, 20, 1000, map[string]any{"regular_only": true}) })
		}
		together.Wait()
		all = append(all, slices.Concat(got...)...)
		if life == 0 {
			d.Kill()
			d = s.configured(args...)
		}
	}
	if n, first := testkit.Duplicates(all); n > 0 {
		t.Errorf("%d of %d IDs came twice; the first is %d", n, len(all), first)
	}
	st := s.Dial().Status()
	if len(st.Services) != 3 {
		t.Fatalf("the status has %+v", st.Services)
	}
	machines := map[int64]string{}
	for i, want := range []struct {
		name     string
		most     int
		fallback string
	}{{"invoices", 256, "none"}, {"orders", 256, "cached+random"}, {"users", 512, "cached+random"}} {
		svc := st.Services[i]
		if svc.Service != want.name || svc.MaxThroughput != want.most || svc.Fallback != want.fallback || svc.Mode != "regular" {
			t.Errorf("services[%d] is %+v", i, svc)
		}
		for _, l := range svc.Leases {
			if other, taken := machines[l.MachineID]; taken {
				t.Errorf("%s and %s both have machine ID %d", svc.Service, other, l.MachineID)
			}
			machines[l.MachineID] = svc.Service
		}
	}
	refusal := s.Dial().Refused(wire.CodeUnknownService, map[string]any{"service": "default"})
	for _, want := range []string{`"default"`, "invoices, orders, users"} {
		if !strings.Contains(refusal.Message, want) {
			t.Errorf("the error is %q, want %q in it", refusal, want)
		}
	}
	s.Kazahanad("id", "--service", "user").Fails(t, exitFailure, "UNKNOWN_SERVICE", "invoices, orders, users")
	s.Kazahanad("id", "--service", "users").OK(t)
}
