package config

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

func reloaded(t *testing.T, before, after string) (*Serve, Reload, error) {
	t.Helper()
	running := mustLoad(t, sources{file: before})
	return running.Reload(mustLoad(t, sources{file: after}), testNow)
}

func TestReload(t *testing.T) {
	for _, c := range []struct {
		name, before, after string
		changed, restart    []string
	}{
		{name: "nothing", before: "log_level: info\n", after: "# other words\nmax_backward: 5000ms\n"},
		{name: "limits", before: "max_connections: 5\nallow_uids: [1]\n", after: "max_in_flight: 7\nallow_uids: [1, 2]\ndrain_timeout: 1s\n",
			changed: []string{"allow_uids", "drain_timeout", "max_connections", "max_in_flight"}},
		{name: "of the store", before: "", after: "max_keys: 7\nmax_disk: 1MiB\n", restart: []string{"max_disk", "max_keys"}},
		{name: "where it is", before: "", after: "socket: /run/x.sock\nstate_dir: /x\nadmin_listen: none\nlog_format: json\nlog_level: debug\n",
			changed: []string{"log_level"}, restart: []string{"log_format", "provider", "socket", "state_dir"}},
		{name: "what IDs are made of", before: "", after: "provider: \"redis://h:1/0\"\nbit_ts: 42\ndefault_epoch: 2026-02-01T00:00:00Z\nfallback: none\n",
			changed: []string{"fallback"}, restart: []string{"bit_ts", "default_epoch", "provider"}},
		{name: "inherited", before: "services: {orders: {}, quick: {fallback: none}}\n", after: "fallback: cached\nservices: {orders: {}, quick: {fallback: none}}\n",
			changed: []string{"fallback"}},
		{name: "of one service", before: "services: {orders: {}}\n", after: "services: {orders: {fallback: none, bit_ts: 42}}\n",
			changed: []string{"services.orders.fallback"}, restart: []string{"services.orders.bit_ts"}},
		{name: "both", before: "services: {orders: {fallback: none}}\n", after: "fallback: cached\nservices: {orders: {}}\n",
			changed: []string{"fallback", "services.orders.fallback"}},
		{name: "services come and go", before: "services: {old: {}}\n", after: "services: {new: {}}\n",
			restart: []string{"services.new", "services.old"}},
		{name: "another default", before: "fallback: cached\n", after: "fallback: none\nservice: other\n",
			changed: []string{"fallback"}, restart: []string{"service"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			merged, r, err := reloaded(t, c.before, c.after)
			must.Succeed(t, err)
			if !slices.Equal(r.Changed, c.changed) || !slices.Equal(r.Restart, c.restart) {
				t.Errorf("changed %v, restart %v; want %v, %v", r.Changed, r.Restart, c.changed, c.restart)
			}
			again, r, err := merged.Reload(mustLoad(t, sources{file: c.after}), testNow)
			if err != nil || len(r.Changed) > 0 || !slices.Equal(r.Restart, c.restart) {
				t.Errorf("the same file again: changed %v, restart %v, %v", r.Changed, r.Restart, err)
			}
			if !reflect.DeepEqual(again.Services(), merged.Services()) {
				t.Errorf("%+v became %+v", merged.Services(), again.Services())
			}
		})
	}
}

// TestReloadKeepsWhatNeedsARestart: nothing that IDs rest on changes under a
// running daemon.
func TestReloadKeepsWhatNeedsARestart(t *testing.T) {
	before := mustLoad(t, sources{file: "services: {orders: {fallback: none}}\n"})
	after := mustLoad(t, sources{file: "socket: /x\nstate_dir: /y\nbit_ts: 40\ndefault_epoch: 2026-02-01T00:00:00Z\nmax_backward: 9s\nevent_loop: false\n"})
	merged, _, err := before.Reload(after, testNow)
	must.Succeed(t, err)
	if merged.Socket != before.Socket || merged.StateDir != before.StateDir || merged.Provider != before.Provider || merged.EventLoop != before.EventLoop {
		t.Errorf("%+v", merged)
	}
	if len(merged.Services()) != 2 {
		t.Errorf("services: %+v", merged.Services())
	}
	for name, got := range merged.Services() {
		was := before.Services()[name]
		if got.BitTS != was.BitTS || !got.DefaultEpoch.Equal(was.DefaultEpoch) {
			t.Errorf("service %s: %+v", name, got)
		}
		if want := map[string]string{"default": "9s", "orders": "5s"}[name]; got.MaxBackward.String() != want {
			t.Errorf("service %s: max_backward %v, want %s", name, got.MaxBackward, want)
		}
	}
	if reflect.DeepEqual(before.Services(), merged.Services()) {
		t.Error("the settings before have changed with it")
	}
}

// What fits the new file's other half may not fit the running one's.
func TestReloadOfHalves(t *testing.T) {
	_, _, err := reloaded(t, "provider: \"none:\"\n", "provider: \"static:1\"\nfallback: cached\n")
	if err == nil || !strings.Contains(err.Error(), "fallback (") || !strings.Contains(err.Error(), "without a restart") {
		t.Errorf("got %v", err)
	}
}

func TestLeaseServerReload(t *testing.T) {
	before := mustLoadLeaseServer(t, sources{})
	after := mustLoadLeaseServer(t, sources{file: "log_level: debug\nmax_in_flight: 5\ntls_cert: /c\ntls_key: /k\nservices: {orders: {bit_seq: 9}}\n"})
	merged, r := before.Reload(after)
	if !slices.Equal(r.Changed, []string{"log_level"}) || !slices.Equal(r.Restart, []string{"max_in_flight", "services", "tls_cert", "tls_key"}) {
		t.Errorf("%+v", r)
	}
	if merged.LogLevel != LogDebug || merged.MaxInFlight != before.MaxInFlight || merged.TLSCert != "" {
		t.Errorf("%+v", merged)
	}
}

// TestEveryKeyIsCompared: a key that is added belongs to one of the sides, and its
// field is found under its name.
func TestEveryKeyIsCompared(t *testing.T) {
	for _, c := range []struct {
		keys  []key
		types []reflect.Type
		live  map[string]bool
	}{
		{keys, []reflect.Type{reflect.TypeFor[Serve](), reflect.TypeFor[Service]()}, live},
		{leaseServerKeys, []reflect.Type{reflect.TypeFor[LeaseServer]()}, leaseServerLive},
	} {
		fields := map[string]bool{"config": true, "services": true}
		for _, typ := range c.types {
			for _, f := range reflect.VisibleFields(typ) {
				if f.IsExported() && !f.Anonymous {
					fields[keyOf(f.Name)] = true
				}
			}
		}
		names := map[string]bool{}
		for _, k := range c.keys {
			names[k.name] = true
			if !fields[k.name] {
				t.Errorf("%s: no field has its value", k.name)
			}
		}
		for key := range fields {
			if !names[key] {
				t.Errorf("a field has the value of %s, which is no key", key)
			}
		}
		for key := range c.live {
			if !names[key] {
				t.Errorf("%s can change while the daemon runs, and is no key", key)
			}
		}
	}
}
