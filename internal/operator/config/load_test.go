package config

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

var testNow = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// sourceTexts is one start of the daemon: its arguments, its environment, and its
// configuration file, which is written to a temporary directory.
type sourceTexts struct {
	args []string
	env  []string
	file string
	uid  int
}

// load returns, beside the settings, the path of the file.
func load(t *testing.T, src sourceTexts) (*Serve, string, error) {
	t.Helper()
	path := src.write(t)
	var c struct {
		Serve
		Check bool
	}
	return &c.Serve, path, c.Load(&c, src.args, Process{Environ: src.env, UID: src.uid, Now: testNow, defaultFile: path})
}

// write writes the file, if there is one.
func (s sourceTexts) write(t *testing.T) (path string) {
	t.Helper()
	if s.file == "" {
		return filepath.Join(t.TempDir(), "absent.yaml")
	}
	path = filepath.Join(t.TempDir(), "k.yaml")
	must.Succeed(t, os.WriteFile(path, []byte(s.file), 0o600))
	return path
}

func mustLoad(t *testing.T, src sourceTexts) *Serve {
	t.Helper()
	s, _, err := load(t, src)
	must.Succeed(t, err)
	return s
}

func (s *Serve) defaultServiceSettings() Service { return s.Services()[s.DefaultService] }

var (
	defaultAccess = Access{SocketMode: 0o660}
	defaultLeases = Leases{
		StateDir: "/var/lib/kazahana", Provider: "sqlite:/var/lib/kazahana/leases.db", ProviderTimeout: 3 * time.Second,
		livePlaces: []string{"/run/kazahana/live", "/dev/shm/kazahana-0"},
	}
	defaultRecords = Records{MaxKeys: 1_000_000, MaxDisk: 1 << 30}
	defaultLogging = Logging{LogLevel: "info", LogFormat: LogAuto}
)

func TestDefaults(t *testing.T) {
	s := mustLoad(t, sourceTexts{})
	want := &Serve{
		// Seed 000-3.2-1.
		origins: origins{}, Access: defaultAccess, Leases: defaultLeases, Records: defaultRecords, Logging: defaultLogging,
		Socket: "/run/kazahana/kazahanad.sock", MaxConnections: 16384, MaxInFlight: 8192, MaxWaiting: 1024, DrainTimeout: 5 * time.Second,
		VerifyInterval: 10 * time.Second, DefaultService: "default", UUIDVersion: 7,
		PlacementTTL: 10 * time.Second, TopologyInterval: time.Second,
		MaxForward: time.Second, ForwardHold: time.Minute,
		Service: Service{
			MaxThroughputPerMS: 256, Fallback: FallbackCachedRandom, SequenceStart: SequenceSpread, // seed 000-5.1-1
			StartupWait: 500 * time.Millisecond, MaxBackward: 5 * time.Second, // seed 000-5.1-2
			AcquireRetryInterval: time.Second, AcquireRetryMaxInterval: time.Minute,
			Layout: LayoutDefault, BitTS: 41, DefaultEpoch: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		},
	}
	want.services, want.terms = map[string]Service{"default": want.Service}, ServiceTerms{}
	if !reflect.DeepEqual(s, want) { // seed 000-13-1
		t.Errorf("got  %+v\nwant %+v", s, want)
	}
}

// precedenceCases gives each key three values other than its default: for the file,
// the environment and the flag.
var precedenceCases = map[string][3]string{
	"socket":                     {"/a", "unix:///b", "/c"},
	"socket_mode":                {"0600", "0666", "0o777"},
	"socket_group":               {"a", "b", "c"},
	"allow_uids":                 {"[1, 2]", "3,4", "5"},
	"allow_gids":                 {"1", "2", "3, 4"},
	"max_connections":            {"1", "2", "3"},
	"memory_limit":               {"16MiB", "1GiB", "20000000"},
	"max_connections_per_user":   {"1", "2", "3"},
	"max_waiting":                {"5", "6", "7"},
	"max_keys":                   {"0", "2", "3"},
	"max_disk":                   {"0", "2048KiB", "3 MiB"},
	"max_in_flight":              {"1", "2", "3"},
	"drain_timeout":              {"1s", "2s", "0"},
	"live_dir":                   {"/a", "/b", "c"},
	"state_dir":                  {"/a", "/b", "c"},
	"provider":                   {"'memory:'", "none:", "redis://h"},
	"provider_timeout":           {"1s", "2s", "4s"},
	"verify_interval":            {"1s", "2s", "3s"},
	"meta":                       {"{a: '1', b: x y}", "{a: '2'}", "a=3,b = 4"},
	"service":                    {"a", "b", "c"},
	"uuid_version":               {"4", "4", "4"},
	"services":                   {"\n  a: {}\n  b: {}", "{c: {}}", "{d: {}, e: {bit_ts: 42}}"},
	"store":                      {"'sqlite:/a'", "none", "etcd://c"},
	"sequences":                  {"\n  a: {step: 2}\n  ab: {start: 0, ttl: 5s}", "{c: {block: 7, on_max: error}}", "{d: {max_value: 9}, '': {}}"},
	"placement_authority":        {"a:1", "[::1]:2", "client"},
	"placement_ttl":              {"4s", "20s", "10m"},
	"placement_idle_ttl":         {"4s", "1h", "1m"},
	"topology_interval":          {"2s", "50ms", "3s"},
	"max_throughput_per_ms":      {"1", "2", "1048576"},
	"fallback":                   {"none", "cached", "none"},
	"sequence_start":             {"zero", "zero", "zero"},
	"startup_wait":               {"1s", "2s", "3s"},
	"max_backward":               {"-1", "0", "-1ms"},
	"acquire_retry_interval":     {"2s", "3s", "4s"},
	"acquire_retry_max_interval": {"2m", "3m", "4m"},
	"layout":                     {"js", "js", "js"},
	"bit_ts":                     {"40", "42", "43"},
	"default_epoch":              {"2026-02-01T00:00:00Z", "2026-03-01T00:00:00.5Z", "2026-03-01T09:00:00+09:00"},
	"external_secret_file":       {"/a", "/b", "/c"},
	"max_forward":                {"2s", "3s", "4s"},
	"forward_hold":               {"2s", "3s", "0s"},
	"memcached_listen":           {"'[::1]:2'", "127.0.0.1:2", "unix:///m"},
	"http_listen":                {"127.0.0.1:3", "localhost:3", "unix:///h"},
	"insecure":                   {"true", "1", "yes"},
	"admin_listen":               {"'[::1]:1'", ":2", "unix:///a"},
	"admin_pprof":                {"true", "1", "yes"},
	"log_level":                  {"debug", "warn", "error"},
	"log_format":                 {"json", "console", "json"},
}

// Each key can be set in the file, in the environment, which outranks it, and by its
// flag, which outranks both.
func TestPrecedence(t *testing.T) {
	ring.WithoutRace(t)
	// Seed 003-6.2-1.
	checkPrecedence(t, serveKeys(), precedenceCases, map[string]string{"admin_listen": "127.0.0.1:9"}, func(src sourceTexts) any {
		s := mustLoad(t, src)
		s.origins, s.Config = nil, ""
		for name, entry := range s.Overrides {
			forgetPlaces(entry.members)
			entry.where = ""
			s.Overrides[name] = entry
		}
		return s
	})
}

// checkPrecedence loads each key from every source. others are settings that the
// cases of other keys need.
func checkPrecedence(t *testing.T, keys []string, cases map[string][3]string, others map[string]string, load func(sourceTexts) any) {
	for _, k := range keys {
		if k == "config" {
			continue
		}
		texts, ok := cases[k]
		if !ok {
			t.Errorf("%s has no case", k)
			continue
		}
		base := "log_level: info\n"
		if k == "log_level" {
			base = "log_format: auto\n"
		}
		for name, text := range others {
			base += name + ": " + text + "\n"
		}
		file := strings.Replace(base, k+": "+others[k]+"\n", "", 1) + k + ": " + texts[0] + "\n"
		env := []string{variable(k) + "=" + texts[1]}
		flag := "--" + strings.ReplaceAll(k, "_", "-")
		apart := []string{flag, texts[2]} // also for -1ms
		if k == "admin_pprof" || k == "insecure" {
			apart = []string{flag + "=" + texts[2]}
		}
		nothing := load(sourceTexts{file: base})
		for i, c := range []struct{ all, alone sourceTexts }{
			{sourceTexts{file: file}, sourceTexts{file: file}},
			{sourceTexts{file: file, env: env}, sourceTexts{file: base, env: env}},
			{sourceTexts{file: file, env: env, args: []string{flag + "=" + texts[2]}}, sourceTexts{file: base, args: apart}},
		} {
			got := load(c.all)
			if alone := load(c.alone); !reflect.DeepEqual(got, alone) {
				t.Errorf("%s: source %d does not outrank the others: %+v, %+v", k, i, got, alone)
			}
			if reflect.DeepEqual(got, nothing) {
				t.Errorf("%s: source %d sets nothing", k, i)
			}
		}
	}
}

// forgetPlaces makes values of two sources equal.
func forgetPlaces(members []value) {
	for i := range members {
		members[i].where = ""
	}
}

// Values become what they mean.
func TestValues(t *testing.T) {
	s := mustLoad(t, sourceTexts{file: `socket: unix:///b
socket_mode: 0o777
allow_uids: [1, 2]
allow_gids: 3, 4
admin_pprof: yes
drain_timeout: 0
provider: "none:"
meta: {a: "1", b: x y}
sequences: {a: {step: 2}, ab: {start: 0, ttl: 5s}, c: {block: 7, on_max: error, max_value: 9}}
max_backward: -1ms
default_epoch: 2026-03-01T09:00:00.5+09:00
admin_listen: unix:///a
`})
	for what, c := range map[string][2]any{
		"socket":        {s.Socket, "/b"},
		"socket_mode":   {uint32(s.SocketMode), uint32(0o777)},
		"allow_uids":    {s.AllowUIDs, []uint32{1, 2}},
		"allow_gids":    {s.AllowGIDs, []uint32{3, 4}},
		"admin_pprof":   {s.AdminPprof, true},
		"drain_timeout": {s.DrainTimeout, time.Duration(0)},
		"provider":      {s.Provider, "none:"},
		"meta":          {s.Meta, Meta{"a": "1", "b": "x y"}},
		"sequences": {s.Sequences, Sequences{{Prefix: "ab", Start: new(int64), TTL: 5 * time.Second}, {Prefix: "a", Step: 2},
			{Prefix: "c", Block: 7, OnMax: "error", MaxValue: 9}}},
		"max_backward":  {s.MaxBackward, -time.Millisecond},
		"default_epoch": {s.DefaultEpoch, time.Date(2026, 3, 1, 0, 0, 0, 5e8, time.UTC)},
		"admin_listen":  {s.AdminListen, "unix:/a"},
	} {
		if !reflect.DeepEqual(c[0], c[1]) {
			t.Errorf("%s is %v, want %v", what, c[0], c[1])
		}
	}
}

func TestSourcesInDetail(t *testing.T) {
	t.Run("an empty variable is unset", func(t *testing.T) {
		s := mustLoad(t, sourceTexts{env: []string{"KAZAHANA_MAX_BACKWARD=", "KAZAHANA_NO_SUCH_KEY= ", "KAZAHANA_CONFIG="}, file: "max_backward: 7s\n"})
		if got := s.MaxBackward; got != 7*time.Second {
			t.Error(got)
		}
	})
	t.Run("blanks around a value are not part of it", func(t *testing.T) {
		if s := mustLoad(t, sourceTexts{env: []string{"KAZAHANA_PROVIDER=redis://h \n"}}); s.Provider != "redis://h" {
			t.Errorf("%q", s.Provider)
		}
	})
	t.Run("false outranks true", func(t *testing.T) {
		s := mustLoad(t, sourceTexts{file: "admin_pprof: true\nadmin_listen: :1\n", args: []string{"--admin-pprof=false"}})
		if s.AdminPprof {
			t.Error("true")
		}
		s = mustLoad(t, sourceTexts{file: "admin_pprof: false\nadmin_listen: :1\n", args: []string{"--admin-pprof"}})
		if !s.AdminPprof {
			t.Error("false")
		}
	})
	t.Run("none switches off", func(t *testing.T) {
		s := mustLoad(t, sourceTexts{
			file: "admin_listen: :1\nallow_uids: [1]\nallow_gids: [2]\nmeta: {a: b}\nservices: {a: {}}\nsocket_group: g\nexternal_secret_file: /a\n",
			env:  []string{"KAZAHANA_ADMIN_LISTEN=none", "KAZAHANA_META=none", "KAZAHANA_SERVICES=none", "KAZAHANA_SOCKET_GROUP=none"},
			args: []string{"--allow-uids=none", "--allow-gids=none", "--external-secret-file=none"},
		})
		if s.AdminListen != "" || s.AllowUIDs != nil || s.AllowGIDs != nil || len(s.Meta) != 0 ||
			len(s.Services()) != 1 || s.SocketGroup != "" || s.ExternalSecretFile != "" {
			t.Errorf("%+v", s)
		}
	})
	t.Run("a repeated flag", func(t *testing.T) {
		s := mustLoad(t, sourceTexts{args: []string{"--allow-uids=1,2", "--allow-uids", "3", "--meta=a=1", "--meta=b=2", "--fallback=none", "--fallback=cached"}})
		if !slices.Equal(s.AllowUIDs, []uint32{1, 2, 3}) || len(s.Meta) != 2 || s.Fallback != FallbackCached {
			t.Errorf("%+v", s)
		}
	})
	t.Run("of a repeated variable the first counts", func(t *testing.T) {
		if s := mustLoad(t, sourceTexts{env: []string{"KAZAHANA_LOG_LEVEL=warn", "KAZAHANA_LOG_LEVEL=debug"}}); s.LogLevel != "warn" {
			t.Error(s.LogLevel)
		}
	})
	t.Run("variables of other commands and of Kubernetes", func(t *testing.T) {
		mustLoad(t, sourceTexts{env: []string{
			"KAZAHANA_MACHINE_ID=7", "KAZAHANA_FENCING_TOKEN=9", "KUBERNETES_SERVICE_HOST=10.0.0.1", "KAZAHANA_PROVIDER=none:",
			"KAZAHANA_SERVICE_HOST=10.0.0.2", "KAZAHANA_SERVICE_PORT=7464", "KAZAHANA_SERVICE_PORT_HTTP=7464",
			"KAZAHANA_PORT=tcp://10.0.0.2:7464", "KAZAHANA_PORT_7464_TCP=tcp://10.0.0.2:7464", "KAZAHANA_PORT_7464_TCP_ADDR=10.0.0.2",
			"KAZAHANA_LEASE_SERVER_SERVICE_HOST=10.0.0.3", "KAZAHANA_LEASE_SERVER_SERVICE_PORT=1", "KAZAHANA_LEASE_SERVER_PORT=tcp://10.0.0.3:1",
		}})
	})
	t.Run("an API server is asked less often", func(t *testing.T) {
		for given, want := range map[string]time.Duration{"kubernetes:": 5 * time.Minute, "Kubernetes:apps": 5 * time.Minute, "none:": 10 * time.Second} {
			if s := mustLoad(t, sourceTexts{args: []string{"--provider", given}}); s.VerifyInterval != want {
				t.Errorf("with %s, verify_interval is %v", given, s.VerifyInterval)
			}
			if s := mustLoad(t, sourceTexts{args: []string{"--provider", given, "--verify-interval=7s"}}); s.VerifyInterval != 7*time.Second {
				t.Errorf("with %s, the given verify_interval is %v", given, s.VerifyInterval)
			}
		}
	})
	t.Run("aliases and block scalars", func(t *testing.T) {
		s := mustLoad(t, sourceTexts{file: "services:\n  a: &a\n    bit_ts: 42\n    max_backward: -1\n  b: *a\nsocket: >-\n  /x\n"})
		if b := s.Services()["b"]; b.BitTS != 42 || b.MaxBackward >= 0 || s.Socket != "/x" {
			t.Errorf("%+v", s)
		}
	})
	for _, empty := range []string{"# nothing\n", "---\n", "\n", "{}\n", "---\n...\n"} {
		t.Run(fmt.Sprintf("empty file %q", empty), func(t *testing.T) { mustLoad(t, sourceTexts{file: empty}) })
	}
}

func TestConfigFile(t *testing.T) {
	dir := t.TempDir()
	other := filepath.Join(dir, "other.yaml")
	must.Succeed(t, os.WriteFile(other, []byte("log_level: error\n"), 0o600))
	missing := filepath.Join(dir, "missing.yaml")
	present := "log_level: warn\n"
	for _, c := range []struct {
		name string
		src  sourceTexts
		want string
		err  string
	}{
		{"default present", sourceTexts{file: present}, "warn", ""},
		{"default absent", sourceTexts{}, "info", ""},
		{"flag", sourceTexts{file: present, args: []string{"--config", other}}, "error", ""},
		{"variable", sourceTexts{file: present, env: []string{"KAZAHANA_CONFIG=" + other}}, "error", ""},
		{"flag over variable", sourceTexts{env: []string{"KAZAHANA_CONFIG=" + missing}, args: []string{"--config", other}}, "error", ""},
		{"none", sourceTexts{file: present, args: []string{"--config=none"}}, "info", ""},
		{"none by variable", sourceTexts{file: present, env: []string{"KAZAHANA_CONFIG=none"}}, "info", ""},
		{"flag names none that exists", sourceTexts{args: []string{"--config", missing}}, "",
			"config in --config: the file " + missing + " does not exist"},
		{"variable names none that exists", sourceTexts{env: []string{"KAZAHANA_CONFIG=" + missing}}, "",
			"config in KAZAHANA_CONFIG: the file " + missing + " does not exist"},
		{"directory", sourceTexts{args: []string{"--config", dir}}, "", "config in --config: cannot read " + dir + ": is a directory"},
		{"empty", sourceTexts{args: []string{"--config="}}, "", `--config: "" is empty`},
		{"in the file", sourceTexts{file: "config: /x\n"}, "", "a file cannot name another"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, _, err := load(t, c.src)
			if c.err != "" {
				wantError(t, err, c.err)
				return
			}
			must.Succeed(t, err)
			if s.LogLevel != c.want {
				t.Errorf("log level %s, want %s", s.LogLevel, c.want)
			}
			if (s.Config == "") != (c.want == "info") {
				t.Errorf("config file %q", s.Config)
			}
		})
	}
}

func TestServices(t *testing.T) {
	s := mustLoad(t, sourceTexts{
		file: "service: main\nmax_backward: 1s\nservices:\n  main: {bit_ts: 42}\n  orders:\n    max_throughput_per_ms: 512\n    external_secret_file: none\n    max_backward: -1\n  empty: {}\n",
		env:  []string{"KAZAHANA_EXTERNAL_SECRET_FILE=/secret"},
		args: []string{"--max-throughput-per-ms=9", "--startup-wait=0"},
	})
	services := s.Services()
	if names := slices.Sorted(maps.Keys(services)); !slices.Equal(names, []string{"empty", "main", "orders"}) {
		t.Fatal(names)
	}
	inherited := s.Service
	if inherited.MaxThroughputPerMS != 9 || inherited.StartupWait != 0 || inherited.ExternalSecretFile != "/secret" {
		t.Errorf("%+v", inherited)
	}
	if services["empty"] != inherited {
		t.Errorf("empty: %+v", services["empty"])
	}
	main := inherited
	main.BitTS = 42
	if services["main"] != main || s.defaultServiceSettings() != main {
		t.Errorf("main: %+v", services["main"])
	}
	orders := inherited
	orders.MaxThroughputPerMS, orders.ExternalSecretFile, orders.MaxBackward = 512, "", -1
	if services["orders"] != orders {
		t.Errorf("orders: %+v", services["orders"])
	}
	delete(services, "main")
	if len(s.Services()) != 3 {
		t.Error("Services hands out its own map")
	}
}

// The help states the default of each key, a key of a service has its group, and no
// variable is taken for a service link.
func TestKeys(t *testing.T) {
	for _, settings := range []any{&Serve{}, &LeaseServer{}} {
		for _, f := range flagsOf(settings) {
			if !f.hasDefault() && !strings.Contains(f.tag.Get("help"), "(default ") {
				t.Errorf("the help of --%s does not say its default: %s", f.name, f.tag.Get("help"))
			}
			_, serve := settings.(*Serve)
			perService := serve && slices.Contains(serviceKeys(), f.key())
			if perService != strings.HasPrefix(f.group, "IDs (each service") {
				t.Errorf("--%s is in the group %q", f.name, f.group)
			}
			if (&environment{variables: map[string]string{
				"KUBERNETES_SERVICE_HOST": "x",
			}}).isServiceLink(variable(f.key())) {
				t.Errorf("%s would be taken for a service link", variable(f.key()))
			}
		}
	}
}

// The layout without a lease is the layout that IDs are explained by.
func TestDefaultLayout(t *testing.T) {
	base := mustLoad(t, sourceTexts{})
	if base.BitTS != snowflake.DefaultBitTS || base.DefaultEpoch.UnixMilli() != snowflake.DefaultEpochMS {
		t.Errorf("bit_ts %d, default_epoch %v", base.BitTS, base.DefaultEpoch)
	}
}
