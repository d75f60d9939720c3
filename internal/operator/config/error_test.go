package config

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/ring"
)

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; want %q", parts)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not say %q", err, part)
		}
	}
	if strings.ContainsAny(err.Error(), "\n\r\x00") {
		t.Errorf("error %q is not one line", err)
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("error %q shows a secret", err)
	}
}

func TestFileErrors(t *testing.T) {
	ring.WithoutRace(t)
	for i, c := range []struct{ file, want string }{
		{"# x\nmax_thruput_per_ms: 1\n", "unknown key max_thruput_per_ms in FILE line 2: did you mean max_throughput_per_ms?"},
		{"max-backward: 1s\n", "unknown key max-backward in FILE line 1: did you mean max_backward?"},
		{"Socket: /x\n", "did you mean socket?"},
		{"\"a\\nb\": 1\n", `unknown key "a\nb" in FILE line 1`},
		{"redis://u:hunter2@h: 1\n", `unknown key "redis://u:xxxxx@h" in FILE`},
		{strings.Repeat("x", 1000) + ": 1\n", "unknown key "},
		{"services:\n  orders:\n    fallbck: none\n", "unknown key services.orders.fallbck in FILE line 3: did you mean fallback?"},
		{"services:\n  orders:\n    socket: /x\n", "services.orders.socket in FILE line 3: socket cannot differ between services"},
		{"services: {a b: {}}\n", `services in FILE line 1: "a b" is not a service name`},
		{"services:\n  orders: 5\n", "services.orders in FILE line 2: it is a single value, and must be a map"},
		{"services:\n  orders:\n", "services.orders in FILE line 2: it has no value"},
		{"services: a\n", `services in FILE line 1: "a" is not a map`},
		{"services: {a: {term: 5}}\n", `services.a.term in FILE line 1: "5" has no unit`},
		{"services: {a: {bit_sq: 9}}\n", "unknown key services.a.bit_sq in FILE line 1: did you mean bit_seq?"},
		{"term: 5m\n", "unknown key term in FILE line 1"}, // a parameter of the provider's URL
		{"provider: https://h\nservices: {a: {layout: js, term: 5m}}\n", "services.a.term (FILE line 2) cannot be set with provider (FILE line 1) https:: the lease server decides on the terms: set them in services of its own configuration"},
		{"provider: 'http+unix:/s'\nservices: {a: {pool: p}}\n", "http+unix:: the lease server decides"},
		{"provider: 'none:'\nservices: {a: {quarantine: 5m}}\n", "services.a.quarantine (FILE line 2) cannot be set with provider (FILE line 1) none:: it grants no leases; terms need one of sqlite:, redis:"},
		{"provider: static:5\nservices: {default: {term: 5m}}\n", "services.default.term (FILE line 2) cannot be set with provider (FILE line 1) static:: it grants one machine ID to one service: write the terms into its URL"},
		{"provider: 'ip:'\nservices: {default: {ids: 0-9}}\n", "ip:: it grants one machine ID to one service: write the terms"},
		{"services: {a: {epoch: 2027-01-01T00:00:00Z}}\n", "services.a.epoch (FILE line 1) 2027-01-01T00:00:00Z is in the future"},
		{"services: {a: {epoch: 2026-02-01T00:00:00Z, default_epoch: 2026-03-01T00:00:00Z}}\n", "services.a (FILE line 1): epoch 2026-02-01T00:00:00Z and default_epoch 2026-03-01T00:00:00Z: set one of them"},
		{"services:\n  a: {}\n  b:\n    bit_ts: 32\n    epoch: 1999-01-01T00:00:00Z\n", "services.b.bit_ts (FILE line 4) 32 and services.b.epoch (FILE line 5) 1999-01-01T00:00:00Z leave no time"},
		{"services: {a: {fallback: maybe}}\n", `services.a.fallback in FILE line 1: "maybe" is none of cached+random, cached, none`},
		{"services: {a: {fallback: {b: c}}}\n", "services.a.fallback in FILE line 1: it is a map, and must be a single value"},
		{"services: {a: {fallback: {b: {c: {d: e}}}}}\n", "too large or too deep"},
		{"store: /var/lib/store.db\n", `store in FILE line 1: "/var/lib/store.db" is not the URL of a store`},
		{"sequences: {a: {stp: 1}}\n", "unknown key sequences.a.stp in FILE line 1: did you mean step?"},
		{"sequences: {a: {step: 0}}\n", `sequences.a.step in FILE line 1: "0" is out of range: write a whole number from 1`},
		{"sequences: {a: {on_max: explode}}\n", "is none of reset, error"},
		{"sequences: {a: {ttl: 5}}\n", "has no unit"},
		{"sequences: {a: {block: 65537}}\n", "is out of range"},
		{"sequences: {a: 1}\n", "sequences.a in FILE line 1: it is a single value, and must be a map"},
		{"placement_authority: here\n", `placement_authority in FILE line 1: "here" is not an authority: write HOST:PORT`},
		{"placement_authority: a:0\n", "is not an authority"},
		{"placement_authority: a:1\nstore: none\n", "placement_authority (FILE line 1) needs a store, and store (FILE line 2) is none"},
		{"placement_ttl: 11m\n", "placement_ttl in FILE line 1: \"11m\" is too long: the most is 10m0s"},
		{"topology_interval: 6s\n", "topology_interval (FILE line 1) 6s is longer than half of placement_ttl (default) 10s"},
		{"sequences: {" + strings.Repeat("x", 513) + ": {}}\n", "is not the beginning of a key"},
		{"log_level: info\nlog_format: json\nlog_level: warn\n", "duplicate key log_level in FILE line 3: it is already set in line 1"},
		{"services:\n  a: &a {bit_ts: 42}\n  b: {<<: *a}\n", "merging maps is not supported"},
		{"log_level:\n", "log_level in FILE line 1: it has no value: give it one, or take out the key"},
		{"log_level: ''\n", `log_level in FILE line 1: "" is empty`},
		{"log_level: [info]\n", "log_level in FILE line 1: it is a list, and must be a single value"},
		{"log_level: {a: b}\n", "it is a map, and must be a single value"},
		{"log_level: !!binary aaaa\n", "a value of type !!binary is of no use here"},
		{"socket: \"/a\\0b\"\n", "holds a control character"},
		{"max_connections: true\n", `max_connections in FILE line 1: "true" is not a whole number: write one from 1 to 1048576`},
		{"max_connections: 1.5\n", "is not a whole number"},
		{"max_connections: 010\n", "is not a whole number"},
		{"max_connections: 0x10\n", "is not a whole number"},
		{"max_connections: 0\n", `"0" is out of range: write a whole number from 1 to 1048576`},
		{"memory_limit: 256MB\n", `memory_limit in FILE line 1: "256MB" is not a size: write 0, or a whole number and KiB, MiB or GiB`},
		{"memory_limit: 1.5GiB\n", "is not a size"},
		{"memory_limit: 99999999999GiB\n", "is not a size"},
		{"memory_limit: -1\n", "is not a size"},
		{"memory_limit: 15MiB\n", "is too little: the least is 16MiB"},
		{"max_disk: 1023KiB\n", "is too little: the least is 1MiB"},
		{"max_throughput_per_ms: 99999999999999999999\n", "out of range"},
		// Seed 000-5.8-5.
		{"max_throughput_per_ms: 0\n", `"0" is out of range: write a whole number from 1 to 1048576`},
		{"max_throughput_per_ms: 1048577\n", `"1048577" is out of range: write a whole number from 1 to 1048576`},
		{"layout: ts\n", "layout in FILE line 1: \"ts\" is none of default, js: did you mean js?"},
		{"layout: js\nbit_ts: 52\n", "layout (FILE line 1) is js and bit_ts (FILE line 2) is 52: set one of them"},
		{"layout: js\nprovider: redis://h/0\n", "layout (FILE line 1) is js, and the leases of provider (FILE line 2) have another layout: add ?layout=js"},
		{"provider: https://h\nservices: {a: {layout: js, bit_ts: 52}}\n", "services.a (FILE line 2): layout js and bit_ts: set one of them"},
		{"bit_ts: 31\n", "write a whole number from 32 to 52"},
		// Seed 001-20.
		{"\n\ndrain_timeout: 5\n", `drain_timeout in FILE line 3: "5" has no unit: write 5s or 5ms, for example`},
		{"drain_timeout: 5d\n", `"5d" is not a duration: write a number and a unit, for example 500ms, 5s or 2m`},
		{"drain_timeout: -1s\n", `"-1s" is too short: the least is 0s`},
		{"drain_timeout: 9000h\n", `"9000h" is too long: the most is 8760h`},
		{"provider_timeout: 0\n", "is too short: the least is 1ms"},
		{"max_backward: 5\n", "has no unit: write 5s"},
		{"max_backward: -5\n", "has no unit: write -1 to wait without limit"},
		{"socket_mode: rw\n", `"rw" is not an octal mode`},
		{"socket_mode: 0460\n", "leaves its owner no write permission"},
		{"socket_mode: 01777\n", "write a mode up to 0777"},
		{"allow_uids: []\n", "allow_uids in FILE line 1: the list is empty: write none, or leave out the key"},
		{"allow_uids:\n  - 1\n  - bob\n", `allow_uids[1] in FILE line 3: "bob" is not a numeric ID`},
		{"allow_uids: [-1]\n", "is not a numeric ID"},
		{"allow_uids: {a: b}\n", "it is a map, and must be a list"},
		{"allow_uids: '1,,2'\n", "is empty"},
		{"meta: [a]\n", "it is a list, and must be a map"},
		{"meta: {host: x}\n", "host is what the daemon itself reports"},
		{"meta: {'a,b': c}\n", `"a,b" is not a name`},
		{"meta: {a: " + strings.Repeat("x", 257) + "}\n", "is too long: the most is 256 bytes"},
		{"service: a/b\n", `"a/b" is not a service name`},
		{"provider: sqlite\n", `"sqlite" is not a provider URL`},
		{"provider: ://u:hunter2@h\n", "is not a provider URL"},
		{"state_dir: redis://u:hunter2@h\nadmin_pprof: redis://u:hunter2@h\n", `"redis://u:xxxxx@h" is neither true nor false`},
		{"socket: unix://host/x\n", "names a host: write unix:///PATH"},
		{"admin_listen: 9746\n", `"9746" is not an address: write HOST:PORT`},
		{"admin_listen: ::1:9746\n", "is not an address"},
		{"admin_listen: localhost:http\n", "is not an address"},
		{"admin_listen: http://localhost:9746\n", "is not an address"},
		{"admin_listen: 'unix:'\n", "is empty"},
		{"memcached_listen: 11212\n", "is not an address: write HOST:PORT, for example 127.0.0.1:11212"},
		{"http_listen: 'unix:@a'\n", "is an abstract socket"},
		{"log_level: warning\n", `"warning" is none of debug, info, warn, error: did you mean warn?`},
		{"default_epoch: 2026-01-01\n", "is not a time: write RFC 3339"},
		{"default_epoch: 1969-12-31T23:59:59Z\n", "is before 1970"},
		{"default_epoch: 2026-11-02T00:00:00Z\n", "default_epoch (FILE line 1) 2026-11-02T00:00:00Z is in the future: this host's clock says 2026-11-01T12:00:00Z"},
		{"default_epoch: 2026-01-01T00:00:00.0001Z\n", "is finer than a millisecond"},
		{"provider: none:\n", `needs quotes: provider: "none:"`},
		{"a\n", "FILE holds a single value, and must hold keys and values"},
		{"log_level: info\n---\nlog_level: warn\n", "FILE: there is more than one YAML document"},
		{"log_level: info\n\tlog_format: json\n", "FILE line "},
		{"log_level: *nope\n", "unknown anchor"},
		{"? [a]\n: b\n", "a key in FILE line 1 is not a word"},
		{"allow_uids: &a [*a]\n", "too large or too deep"},
		{strings.Repeat("# filler\n", 1<<17), "FILE is larger than 1048576 bytes"},
		{"allow_uids: [" + strings.Repeat("1,", 1<<17) + "1]\n", "too large or too deep"},
	} {
		// The name of a subtest becomes part of the file's path, and so of the error.
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			_, path, err := load(t, sourceTexts{file: c.file})
			wantError(t, err, strings.ReplaceAll(c.want, "FILE", path))
			if err != nil && len(err.Error()) > 600 {
				t.Errorf("error is %d bytes long", len(err.Error()))
			}
		})
	}
}

func TestFlagAndVariableErrors(t *testing.T) {
	for _, c := range []struct {
		name string
		src  sourceTexts
		want string
	}{
		{"flag", sourceTexts{args: []string{"--max-backward=5"}}, `--max-backward: "5" has no unit`},
		{"overridden flag is judged too", sourceTexts{file: "fallback: x\n", args: []string{"--fallback=none"}}, `fallback in `},
		{"variable", sourceTexts{env: []string{"KAZAHANA_BIT_TS=7"}}, `bit_ts in KAZAHANA_BIT_TS: "7" is out of range`},
		{"empty flag", sourceTexts{args: []string{"--socket="}}, `--socket: "" is empty`},
		{"unknown variable", sourceTexts{env: []string{"KAZAHANA_MAX_THRUPUT_PER_MS=hunter2"}},
			"unknown variable KAZAHANA_MAX_THRUPUT_PER_MS in the environment: did you mean KAZAHANA_MAX_THROUGHPUT_PER_MS?"},
		{"lower case variable", sourceTexts{env: []string{"KAZAHANA_log_level=info"}}, "did you mean KAZAHANA_LOG_LEVEL?"},
		{"strange variable", sourceTexts{env: []string{"KAZAHANA_WHATEVER_ELSE=1"}}, "kazahanad serve --help lists the keys"},
		{"service link outside Kubernetes", sourceTexts{env: []string{"KAZAHANA_PORT=1", "KAZAHANA_SERVICE_HOST=h", "KAZAHANA_SERVICE_PORT=1"}}, "unknown variable"},
		{"secret in provider", sourceTexts{args: []string{"--provider=/:hunter2@h"}}, "--provider: "},
		{"secret in services", sourceTexts{env: []string{"KAZAHANA_SERVICES={a: {fallback: 'redis://u:hunter2@h'}}"}},
			`services.a.fallback in KAZAHANA_SERVICES: "redis://u:xxxxx@h" is none of`},
		{"services not YAML", sourceTexts{args: []string{"--services={a: "}}, "--services: "},
		{"services two documents", sourceTexts{args: []string{"--services={a: {}}\n---\n{b: {}}"}}, "--services: "},
		{"services unknown key", sourceTexts{args: []string{"--services={a: {bit_t: 41}}"}}, "--services: unknown key services.a.bit_t: did you mean bit_ts?"},
		{"services not a map", sourceTexts{args: []string{"--services=a"}}, `"a" is not a map: write {NAME: {KEY: VALUE}}`},
		{"meta without value", sourceTexts{args: []string{"--meta=a"}}, `--meta: "a" has no value: write KEY=VALUE`},
		{"meta empty value", sourceTexts{args: []string{"--meta=a="}}, `--meta: meta.a: "" is empty`},
		{"meta without name", sourceTexts{args: []string{"--meta==b"}}, `"" is not a name`},
		{"meta twice", sourceTexts{args: []string{"--meta=a=b", "--meta=a=c"}}, "a is given twice"},
		{"meta broken map", sourceTexts{args: []string{"--meta={a"}}, "--meta: "},
		{"meta too many", sourceTexts{args: []string{"--meta=" + strings.Repeat("x", 64) + "y=1"}}, "is not a name"},
		{"list with a hole", sourceTexts{args: []string{"--allow-uids=1,"}}, "is empty"},
		{"switch", sourceTexts{args: []string{"--admin-pprof=maybe"}}, `"maybe" is neither true nor false`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := load(t, c.src)
			wantError(t, err, c.want)
		})
	}
}

func TestCommandLineErrors(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--socket"}, "--socket needs a value: PATH"},
		{[]string{"--max-thruput-per-ms=1"}, "unknown flag --max-thruput-per-ms, did you mean --max-throughput-per-ms?"},
		{[]string{"--redis://u:hunter2@h"}, `unknown flag --"redis://u:xxxxx@h"`},
		{[]string{"-x"}, "unknown flag -x"},
		{[]string{"--=x"}, "--=x is not a flag"},
	} {
		if _, _, err := load(t, sourceTexts{args: c.args}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v", c.args, err)
		}
	}
}

func TestContradictions(t *testing.T) {
	for _, c := range []struct {
		name string
		src  sourceTexts
		want []string
	}{
		{"no state and no provider", sourceTexts{args: []string{"--state-dir=none"}}, []string{"state_dir (--state-dir)", "set provider"}},
		{"state directory that is no URL", sourceTexts{args: []string{"--state-dir=/a?b"}}, []string{"state_dir (--state-dir)", "set provider"}},
		{"nowhere for state", sourceTexts{uid: 1000}, []string{"state_dir", "HOME"}},
		{"static with services", sourceTexts{file: "services: {a: {}}\n", args: []string{"--provider=static:1"}},
			[]string{"provider (--provider) is static:", "2 (a, default)"}},
		{"ip with services", sourceTexts{file: "services: {a: {}}\n", args: []string{"--provider=IP:"}}, []string{"is ip:"}},
		{"retry intervals", sourceTexts{file: "\nacquire_retry_max_interval: 500ms\n"},
			[]string{"acquire_retry_interval (default) 1s is longer than acquire_retry_max_interval (", " line 2) 500ms"}},
		{"retry intervals of a service", sourceTexts{args: []string{"--services={a: {acquire_retry_interval: 2m}}"}},
			[]string{"services.a.acquire_retry_interval (--services) 2m0s is longer than acquire_retry_max_interval (default) 1m0s"}},
		{"nothing to make IDs from", sourceTexts{args: []string{"--provider=none:", "--fallback=none"}},
			[]string{"provider (--provider) none:", "fallback (--fallback) none", "every request for service default would fail"}},
		{"nothing to make a service's IDs from", sourceTexts{args: []string{"--provider=none:", "--services={a: {fallback: none}}"}},
			[]string{"services.a.fallback (--services) none", "service a would fail"}},
		{"group that cannot connect", sourceTexts{args: []string{"--socket-group=g", "--socket-mode=0600"}}, []string{"socket_group (--socket-group)", "0600"}},
		{"memcached for everybody", sourceTexts{file: "memcached_listen: :11212\n"}, []string{"memcached_listen (", ":11212 can be reached from other hosts", "--insecure"}},
		{"http for everybody", sourceTexts{file: "http_listen: 10.0.0.7:80\n"}, []string{"http_listen (", "10.0.0.7:80 can be reached from other hosts"}},
		{"two doors in one place", sourceTexts{file: "http_listen: 127.0.0.1:1\nmemcached_listen: 127.0.0.1:1\n"}, []string{"http_listen (", "and memcached_listen (", "are the same address"}},
		{"a door in place of the socket", sourceTexts{file: "socket: /a\nhttp_listen: unix:/a\n"}, []string{"http_listen (", "and socket (", "are the same address"}},
		{"pprof nowhere", sourceTexts{env: []string{"KAZAHANA_ADMIN_PPROF=true"}}, []string{"admin_pprof (KAZAHANA_ADMIN_PPROF) needs admin_listen"}},
		{"one socket for two", sourceTexts{args: []string{"--socket=/a", "--admin-listen=unix:/a"}}, []string{"are the same address"}},
		{"time is over", sourceTexts{args: []string{"--bit-ts=32"}},
			[]string{"bit_ts (--bit-ts) 32 and default_epoch (default) 2026-01-01T00:00:00Z leave no time: timestamps ran out on 2026-02-19"}},
		{"Kubernetes", sourceTexts{env: []string{"KUBERNETES_SERVICE_HOST=10.0.0.1"}},
			[]string{"inside Kubernetes there is no default", "same machine IDs", "kubernetes:", "coordination.k8s.io"}},
		{"default socket too long", sourceTexts{env: []string{"RUNTIME_DIRECTORY=/" + strings.Repeat("x", 120)}, uid: 1}, []string{"set socket"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := load(t, c.src)
			wantError(t, err, c.want...)
		})
	}
}

func TestNoContradiction(t *testing.T) {
	for _, src := range []sourceTexts{
		{args: []string{"--state-dir=none", "--provider=none:"}},
		{args: []string{"--provider=static:3", "--service=a", "--services={a: {}}"}},
		{args: []string{"--provider=none:", "--fallback=cached+random"}},
		{args: []string{"--bit-ts=52"}},
		{env: []string{"KUBERNETES_SERVICE_HOST=10.0.0.1", "KAZAHANA_PROVIDER=sqlite:/x"}},
		{env: []string{"HOME=/h"}, uid: 1000},
	} {
		if _, _, err := load(t, src); err != nil {
			t.Errorf("%+v: %v", src, err)
		}
	}
}
