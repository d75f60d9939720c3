package config

import (
	"slices"
	"testing"
)

func TestReload(t *testing.T) {
	for _, c := range []struct {
		name, before, after string
		changed, restart    []string
	}{
		{name: "nothing", before: "log_level: info\nservices: {orders: {bit_ts: 42}}\n", after: "# other words\nservices:\n  orders:\n    bit_ts: 42\nmax_backward: 5000ms\n"},
		{name: "who may connect", before: "max_connections: 5\nallow_uids: [1]\n", after: "max_in_flight: 7\nallow_uids: [1, 2]\nallow_gids: [3]\ndrain_timeout: 1s\n",
			changed: []string{"allow_gids", "allow_uids"}, restart: []string{"drain_timeout", "max_connections", "max_in_flight"}},
		{name: "where it is", before: "", after: "socket: /run/x.sock\nstate_dir: /x\nadmin_listen: none\nlog_format: json\nlog_level: debug\n",
			changed: []string{"log_level"}, restart: []string{"log_format", "provider", "socket", "state_dir"}},
		{name: "what IDs are made of", before: "", after: "provider: \"redis://h:1/0\"\nbit_ts: 42\ndefault_epoch: 2026-02-01T00:00:00Z\nfallback: none\n",
			restart: []string{"bit_ts", "default_epoch", "fallback", "provider"}},
		{name: "of one service", before: "services: {orders: {}}\n", after: "services: {orders: {fallback: none}}\n", restart: []string{"services"}},
		{name: "services come and go", before: "services: {old: {}}\n", after: "services: {new: {}}\n", restart: []string{"services"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before, after := mustLoad(t, sourceTexts{file: c.before}), mustLoad(t, sourceTexts{file: c.after})
			merged, r := before.Reload(after)
			if !slices.Equal(r.Changed, c.changed) || !slices.Equal(r.Restart, c.restart) {
				t.Errorf("changed %v, restart %v; want %v, %v", r.Changed, r.Restart, c.changed, c.restart)
			}
			if merged.Socket != before.Socket || merged.BitTS != before.BitTS || merged.MaxConnections != before.MaxConnections ||
				merged.LogLevel != after.LogLevel || !slices.Equal(merged.AllowUIDs, after.AllowUIDs) {
				t.Errorf("%+v", merged)
			}
			if _, r = merged.Reload(after); len(r.Changed) > 0 || !slices.Equal(r.Restart, c.restart) {
				t.Errorf("the same file again: changed %v, restart %v", r.Changed, r.Restart)
			}
		})
	}
}

func TestLeaseServerReload(t *testing.T) {
	before := mustLoadLeaseServer(t, sourceTexts{})
	after := mustLoadLeaseServer(t, sourceTexts{file: "log_level: debug\nmax_in_flight: 5\ntls_cert: /c\ntls_key: /k\nservices: {orders: {bit_seq: 9}}\n"})
	merged, r := before.Reload(after)
	if !slices.Equal(r.Changed, []string{"log_level"}) || !slices.Equal(r.Restart, []string{"max_in_flight", "services", "tls_cert", "tls_key"}) {
		t.Errorf("%+v", r)
	}
	moved := mustLoadLeaseServer(t, sourceTexts{file: "services:\n\n  orders:\n    bit_seq: 9\n"})
	if _, r := mustLoadLeaseServer(t, sourceTexts{file: "services: {orders: {bit_seq: 9}}\n"}).Reload(moved); len(r.Restart) > 0 {
		t.Errorf("the same services in other lines: %+v", r)
	}
	if merged.LogLevel != "debug" || merged.MaxInFlight != before.MaxInFlight || merged.TLSCert != "" {
		t.Errorf("%+v", merged)
	}
}
