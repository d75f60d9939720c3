package config

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	"github.com/kazahana/kazahana/internal/snowflake"
)

var testNow = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// sources is one start of the daemon: its arguments, its environment, and its
// configuration file, which is written to a temporary directory.
type sources struct {
	args []string
	env  []string
	file string
	uid  int
}

func parseFlags(t *testing.T, args ...string) (*Flags, error) {
	t.Helper()
	var cli struct {
		Serve struct {
			Flags
			Check bool `help:"Validate and exit."`
		} `cmd:""`
	}
	parser, err := kong.New(&cli, kong.Name("kazahanad"), kong.Writers(io.Discard, io.Discard),
		kong.Exit(func(int) { t.Error("kong would exit") }))
	if err != nil {
		t.Fatal(err)
	}
	_, err = parser.Parse(append([]string{"serve"}, args...))
	return &cli.Serve.Flags, err
}

// load returns, beside the settings, the path of the file.
func load(t *testing.T, src sources) (*Serve, string, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "absent.yaml")
	if src.file != "" {
		path = filepath.Join(t.TempDir(), "k.yaml")
		if err := os.WriteFile(path, []byte(src.file), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	flags, err := parseFlags(t, src.args...)
	if err != nil {
		t.Fatalf("kong: %v", err)
	}
	s, err := flags.Load(Process{Environ: src.env, UID: src.uid, Now: testNow, defaultFile: path})
	return s, path, err
}

func mustLoad(t *testing.T, src sources) *Serve {
	t.Helper()
	s, _, err := load(t, src)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *Serve) defaultServiceSettings() Service { return s.Services()[s.DefaultService] }

func TestDefaults(t *testing.T) {
	s := mustLoad(t, sources{})
	want := &Serve{
		Socket: "/run/kazahana/kazahanad.sock", SocketMode: 0o660,
		MaxConnections: 16384, MaxInFlight: 8192, EventLoop: true, DrainTimeout: 5 * time.Second,
		StateDir: "/var/lib/kazahana", Provider: "sqlite:/var/lib/kazahana/leases.db",
		livePlaces:      []string{"/run/kazahana/live", "/dev/shm/kazahana-0"},
		ProviderTimeout: 3 * time.Second, VerifyInterval: 10 * time.Second, DefaultService: "default",
		PlacementTTL: 10 * time.Second, TopologyInterval: time.Second,
		MaxForward: time.Second, ForwardHold: time.Minute,
		LogLevel: LogInfo, LogFormat: LogAuto,
		base: Service{
			MaxThroughputPerMS: 256, Fallback: FallbackCachedRandom, SequenceStart: SequenceSpread,
			StartupWait: 500 * time.Millisecond, MaxBackward: 5 * time.Second,
			AcquireRetryInterval: time.Second, AcquireRetryMaxInterval: time.Minute,
			Layout: LayoutDefault, BitTS: 41, DefaultEpoch: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		},
		origin: map[string]string{},
	}
	want.services = map[string]Service{"default": want.base}
	if !reflect.DeepEqual(s, want) {
		t.Errorf("got  %+v\nwant %+v", s, want)
	}
}

// precedenceCases gives each key three values other than its default: for the
// file, the environment and the flag; and how to read it back.
var precedenceCases = map[string]struct {
	texts [3]string
	read  func(*Serve) any
	want  [3]any
}{
	"socket":                  {[3]string{"/a", "unix:///b", "/c"}, func(s *Serve) any { return s.Socket }, [3]any{"/a", "/b", "/c"}},
	"socket_mode":             {[3]string{"0600", "0666", "0o777"}, func(s *Serve) any { return uint32(s.SocketMode) }, [3]any{uint32(0o600), uint32(0o666), uint32(0o777)}},
	"socket_group":            {[3]string{"a", "b", "c"}, func(s *Serve) any { return s.SocketGroup }, [3]any{"a", "b", "c"}},
	"allow_uids":              {[3]string{"[1, 2]", "3,4", "5"}, func(s *Serve) any { return s.AllowUIDs }, [3]any{[]uint32{1, 2}, []uint32{3, 4}, []uint32{5}}},
	"allow_gids":              {[3]string{"1", "2", "3, 4"}, func(s *Serve) any { return s.AllowGIDs }, [3]any{[]uint32{1}, []uint32{2}, []uint32{3, 4}}},
	"max_connections":         {[3]string{"1", "2", "3"}, func(s *Serve) any { return s.MaxConnections }, [3]any{1, 2, 3}},
	"memory_limit":            {[3]string{"16MiB", "1GiB", "20000000"}, func(s *Serve) any { return s.MemoryLimit }, [3]any{int64(16 << 20), int64(1 << 30), int64(20_000_000)}},
	"max_connections_per_uid": {[3]string{"1", "2", "3"}, func(s *Serve) any { return s.MaxConnectionsPerUID }, [3]any{1, 2, 3}},
	"max_in_flight_per_uid":   {[3]string{"1", "2", "3"}, func(s *Serve) any { return s.MaxInFlightPerUID }, [3]any{1, 2, 3}},
	"memory_per_uid":          {[3]string{"2048KiB", "3 MiB", "4MiB"}, func(s *Serve) any { return s.MemoryPerUID }, [3]any{int64(2 << 20), int64(3 << 20), int64(4 << 20)}},
	"event_loop":              {[3]string{"false", "0", "no"}, func(s *Serve) any { return s.EventLoop }, [3]any{false, false, false}},
	"max_in_flight":           {[3]string{"1", "2", "3"}, func(s *Serve) any { return s.MaxInFlight }, [3]any{1, 2, 3}},
	"drain_timeout":           {[3]string{"1s", "2s", "0"}, func(s *Serve) any { return s.DrainTimeout }, [3]any{time.Second, 2 * time.Second, time.Duration(0)}},
	"live_dir":                {[3]string{"/a", "/b", "c"}, func(s *Serve) any { return s.LiveDir }, [3]any{"/a", "/b", "c"}},
	"state_dir":               {[3]string{"/a", "/b", "c"}, func(s *Serve) any { return s.StateDir }, [3]any{"/a", "/b", "c"}},
	"provider":                {[3]string{"'memory:'", "none:", "redis://h"}, func(s *Serve) any { return s.Provider }, [3]any{"memory:", "none:", "redis://h"}},
	"provider_timeout": {[3]string{"1s", "2s", "4s"}, func(s *Serve) any { return s.ProviderTimeout },
		[3]any{time.Second, 2 * time.Second, 4 * time.Second}},
	"verify_interval": {[3]string{"1s", "2s", "3s"}, func(s *Serve) any { return s.VerifyInterval },
		[3]any{time.Second, 2 * time.Second, 3 * time.Second}},
	"meta": {[3]string{"{a: '1', b: x y}", "{a: '2'}", "a=3,b = 4"}, func(s *Serve) any { return s.Meta },
		[3]any{map[string]string{"a": "1", "b": "x y"}, map[string]string{"a": "2"}, map[string]string{"a": "3", "b": "4"}}},
	"service": {[3]string{"a", "b", "c"}, func(s *Serve) any { return s.DefaultService }, [3]any{"a", "b", "c"}},
	"services": {[3]string{"\n  a: {}\n  b: {}", "{c: {}}", "{d: {}, e: {bit_ts: 42}}"},
		func(s *Serve) any { return slices.Sorted(maps.Keys(s.Services())) },
		[3]any{[]string{"a", "b", "default"}, []string{"c", "default"}, []string{"d", "default", "e"}}},
	"store": {[3]string{"'sqlite:/a'", "none", "etcd://c"}, func(s *Serve) any { return s.Store }, [3]any{"sqlite:/a", "none", "etcd://c"}},
	"sequences": {[3]string{"\n  a: {step: 2}\n  ab: {start: 0, ttl: 5s}", "{c: {block: 7, on_max: error}}", "{d: {max_value: 9}, '': {}}"},
		func(s *Serve) any { return s.Sequences },
		[3]any{
			[]Sequence{{Prefix: "ab", StartSet: true, TTL: 5 * time.Second}, {Prefix: "a", Step: 2}},
			[]Sequence{{Prefix: "c", Block: 7, OnMax: "error"}}, []Sequence{{Prefix: "d", MaxValue: 9}, {}},
		}},
	"placement_authority": {[3]string{"a:1", "[::1]:2", "client"}, func(s *Serve) any { return s.PlacementAuthority }, [3]any{"a:1", "[::1]:2", "client"}},
	"placement_ttl": {[3]string{"4s", "20s", "10m"}, func(s *Serve) any { return s.PlacementTTL },
		[3]any{4 * time.Second, 20 * time.Second, 10 * time.Minute}},
	"placement_idle_ttl": {[3]string{"4s", "1h", "0"}, func(s *Serve) any { return s.PlacementIdleTTL },
		[3]any{4 * time.Second, time.Hour, time.Duration(0)}},
	"topology_interval": {[3]string{"2s", "50ms", "3s"}, func(s *Serve) any { return s.TopologyInterval },
		[3]any{2 * time.Second, 50 * time.Millisecond, 3 * time.Second}},
	"max_throughput_per_ms": {[3]string{"1", "2", "1048576"}, func(s *Serve) any { return s.base.MaxThroughputPerMS }, [3]any{1, 2, 1 << 20}},
	"fallback":              {[3]string{"none", "cached", "none"}, func(s *Serve) any { return s.base.Fallback }, [3]any{FallbackNone, FallbackCached, FallbackNone}},
	"sequence_start":        {[3]string{"zero", "zero", "zero"}, func(s *Serve) any { return s.base.SequenceStart }, [3]any{SequenceZero, SequenceZero, SequenceZero}},
	"startup_wait":          {[3]string{"1s", "2s", "3s"}, func(s *Serve) any { return s.base.StartupWait }, [3]any{time.Second, 2 * time.Second, 3 * time.Second}},
	"max_backward": {[3]string{"-1", "0", "-1ms"}, func(s *Serve) any { return s.base.MaxBackward },
		[3]any{time.Duration(-1), time.Duration(0), -time.Millisecond}},
	"acquire_retry_interval": {[3]string{"2s", "3s", "4s"}, func(s *Serve) any { return s.base.AcquireRetryInterval },
		[3]any{2 * time.Second, 3 * time.Second, 4 * time.Second}},
	"acquire_retry_max_interval": {[3]string{"2m", "3m", "4m"}, func(s *Serve) any { return s.base.AcquireRetryMaxInterval },
		[3]any{2 * time.Minute, 3 * time.Minute, 4 * time.Minute}},
	"layout": {[3]string{"default", "js", "default"}, func(s *Serve) any { return s.base.Layout }, [3]any{LayoutDefault, LayoutJS, LayoutDefault}},
	"bit_ts": {[3]string{"40", "42", "43"}, func(s *Serve) any { return s.base.BitTS }, [3]any{40, 42, 43}},
	"default_epoch": {[3]string{"2026-02-01T00:00:00Z", "2026-03-01T00:00:00.5Z", "2026-03-01T09:00:00+09:00"},
		func(s *Serve) any { return s.base.DefaultEpoch.Format(time.RFC3339Nano) },
		[3]any{"2026-02-01T00:00:00Z", "2026-03-01T00:00:00.5Z", "2026-03-01T00:00:00Z"}},
	"external_secret_file": {[3]string{"/a", "/b", "/c"}, func(s *Serve) any { return s.base.ExternalSecretFile }, [3]any{"/a", "/b", "/c"}},
	"max_forward":          {[3]string{"2s", "3s", "4s"}, func(s *Serve) any { return s.MaxForward }, [3]any{2 * time.Second, 3 * time.Second, 4 * time.Second}},
	"forward_hold":         {[3]string{"2s", "3s", "0s"}, func(s *Serve) any { return s.ForwardHold }, [3]any{2 * time.Second, 3 * time.Second, time.Duration(0)}},
	"admin_listen":         {[3]string{"'[::1]:1'", ":2", "unix:///a"}, func(s *Serve) any { return s.AdminListen }, [3]any{"[::1]:1", ":2", "unix:/a"}},
	"admin_pprof":          {[3]string{"true", "1", "yes"}, func(s *Serve) any { return s.AdminPprof }, [3]any{true, true, true}},
	"log_level":            {[3]string{"debug", "warn", "error"}, func(s *Serve) any { return s.LogLevel }, [3]any{LogDebug, LogWarn, LogError}},
	"log_format":           {[3]string{"json", "console", "json"}, func(s *Serve) any { return s.LogFormat }, [3]any{LogJSON, LogConsole, LogJSON}},
}

// Every key in every combination of sources: the strongest one counts.
func TestPrecedence(t *testing.T) {
	for _, k := range keys {
		if k.name == "config" {
			continue
		}
		c, ok := precedenceCases[k.name]
		if !ok {
			t.Errorf("%s has no case", k.name)
			continue
		}
		for present := 1; present < 8; present++ {
			src := sources{file: "log_level: info\n", env: []string{}}
			if k.name == "log_level" {
				src.file = "log_format: auto\n"
			}
			if k.name == "admin_pprof" {
				src.file += "admin_listen: 127.0.0.1:1\n"
			}
			strongest := 0
			if present&1 != 0 {
				src.file += k.name + ": " + c.texts[0] + "\n"
				strongest = 0
			}
			if present&2 != 0 {
				src.env = append(src.env, variable(k.name)+"="+c.texts[1])
				strongest = 1
			}
			if present&4 != 0 {
				flag := "--" + strings.ReplaceAll(k.name, "_", "-")
				src.args = []string{flag + "=" + c.texts[2]}
				if k.name != "admin_pprof" && k.name != "event_loop" && present == 4 {
					src.args = []string{flag, c.texts[2]} // without "=", also for -1ms
				}
				strongest = 2
			}
			s, _, err := load(t, src)
			if err != nil {
				t.Errorf("%s, sources %03b: %v", k.name, present, err)
				continue
			}
			if got := c.read(s); !reflect.DeepEqual(got, c.want[strongest]) {
				t.Errorf("%s, sources %03b: got %v, want %v", k.name, present, got, c.want[strongest])
			}
		}
	}
}

func TestSourcesInDetail(t *testing.T) {
	t.Run("an empty variable is unset", func(t *testing.T) {
		s := mustLoad(t, sources{env: []string{"KAZAHANA_MAX_BACKWARD=", "KAZAHANA_NO_SUCH_KEY= ", "KAZAHANA_CONFIG="}, file: "max_backward: 7s\n"})
		if got := s.base.MaxBackward; got != 7*time.Second {
			t.Error(got)
		}
	})
	t.Run("blanks around a value are not part of it", func(t *testing.T) {
		if s := mustLoad(t, sources{env: []string{"KAZAHANA_PROVIDER=redis://h \n"}}); s.Provider != "redis://h" {
			t.Errorf("%q", s.Provider)
		}
	})
	t.Run("false outranks true", func(t *testing.T) {
		s := mustLoad(t, sources{file: "admin_pprof: true\nadmin_listen: :1\n", args: []string{"--admin-pprof=false"}})
		if s.AdminPprof {
			t.Error("true")
		}
		s = mustLoad(t, sources{file: "admin_pprof: false\nadmin_listen: :1\n", args: []string{"--admin-pprof"}})
		if !s.AdminPprof {
			t.Error("false")
		}
	})
	t.Run("none switches off", func(t *testing.T) {
		s := mustLoad(t, sources{
			file: "admin_listen: :1\nallow_uids: [1]\nallow_gids: [2]\nmeta: {a: b}\nservices: {a: {}}\nsocket_group: g\nexternal_secret_file: /a\n",
			env:  []string{"KAZAHANA_ADMIN_LISTEN=none", "KAZAHANA_META=none", "KAZAHANA_SERVICES=none", "KAZAHANA_SOCKET_GROUP=none"},
			args: []string{"--allow-uids=none", "--allow-gids=none", "--external-secret-file=none"},
		})
		if s.AdminListen != "" || s.AllowUIDs != nil || s.AllowGIDs != nil || len(s.Meta) != 0 ||
			len(s.Services()) != 1 || s.SocketGroup != "" || s.base.ExternalSecretFile != "" {
			t.Errorf("%+v", s)
		}
	})
	t.Run("a repeated flag", func(t *testing.T) {
		s := mustLoad(t, sources{args: []string{"--allow-uids=1,2", "--allow-uids", "3", "--meta=a=1", "--meta=b=2", "--fallback=none", "--fallback=cached"}})
		if !slices.Equal(s.AllowUIDs, []uint32{1, 2, 3}) || len(s.Meta) != 2 || s.base.Fallback != FallbackCached {
			t.Errorf("%+v", s)
		}
	})
	t.Run("of a repeated variable the first counts", func(t *testing.T) {
		if s := mustLoad(t, sources{env: []string{"KAZAHANA_LOG_LEVEL=warn", "KAZAHANA_LOG_LEVEL=debug"}}); s.LogLevel != LogWarn {
			t.Error(s.LogLevel)
		}
	})
	t.Run("variables of other commands and of Kubernetes", func(t *testing.T) {
		mustLoad(t, sources{env: []string{
			"KAZAHANA_MACHINE_ID=7", "KAZAHANA_FENCING_TOKEN=9", "KUBERNETES_SERVICE_HOST=10.0.0.1", "KAZAHANA_PROVIDER=none:",
			"KAZAHANA_SERVICE_HOST=10.0.0.2", "KAZAHANA_SERVICE_PORT=7464", "KAZAHANA_SERVICE_PORT_HTTP=7464",
			"KAZAHANA_PORT=tcp://10.0.0.2:7464", "KAZAHANA_PORT_7464_TCP=tcp://10.0.0.2:7464", "KAZAHANA_PORT_7464_TCP_ADDR=10.0.0.2",
			"KAZAHANA_LEASE_SERVER_SERVICE_HOST=10.0.0.3", "KAZAHANA_LEASE_SERVER_SERVICE_PORT=1", "KAZAHANA_LEASE_SERVER_PORT=tcp://10.0.0.3:1",
		}})
	})
	t.Run("aliases and block scalars", func(t *testing.T) {
		s := mustLoad(t, sources{file: "services:\n  a: &a\n    bit_ts: 42\n    max_backward: -1\n  b: *a\nsocket: >-\n  /x\n"})
		if b := s.Services()["b"]; b.BitTS != 42 || b.MaxBackward >= 0 || s.Socket != "/x" {
			t.Errorf("%+v", s)
		}
	})
	for _, empty := range []string{"# nothing\n", "---\n", "\n", "{}\n", "---\n...\n"} {
		t.Run(fmt.Sprintf("empty file %q", empty), func(t *testing.T) { mustLoad(t, sources{file: empty}) })
	}
}

func TestConfigFile(t *testing.T) {
	dir := t.TempDir()
	other := filepath.Join(dir, "other.yaml")
	if err := os.WriteFile(other, []byte("log_level: error\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(dir, "missing.yaml")
	present := "log_level: warn\n"
	for _, c := range []struct {
		name string
		src  sources
		want LogLevel
		err  string
	}{
		{"default present", sources{file: present}, LogWarn, ""},
		{"default absent", sources{}, LogInfo, ""},
		{"flag", sources{file: present, args: []string{"--config", other}}, LogError, ""},
		{"variable", sources{file: present, env: []string{"KAZAHANA_CONFIG=" + other}}, LogError, ""},
		{"flag over variable", sources{env: []string{"KAZAHANA_CONFIG=" + missing}, args: []string{"--config", other}}, LogError, ""},
		{"none", sources{file: present, args: []string{"--config=none"}}, LogInfo, ""},
		{"none by variable", sources{file: present, env: []string{"KAZAHANA_CONFIG=none"}}, LogInfo, ""},
		{"flag names none that exists", sources{args: []string{"--config", missing}}, "",
			"config in --config: the file " + missing + " does not exist"},
		{"variable names none that exists", sources{env: []string{"KAZAHANA_CONFIG=" + missing}}, "",
			"config in KAZAHANA_CONFIG: the file " + missing + " does not exist"},
		{"directory", sources{args: []string{"--config", dir}}, "", "config in --config: cannot read " + dir + ": is a directory"},
		{"empty", sources{args: []string{"--config="}}, "", `config in --config: "" is empty`},
		{"in the file", sources{file: "config: /x\n"}, "", "a file cannot name another"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, _, err := load(t, c.src)
			if c.err != "" {
				wantError(t, err, c.err)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if s.LogLevel != c.want {
				t.Errorf("log level %s, want %s", s.LogLevel, c.want)
			}
			if (s.Config == "") != (c.want == LogInfo) {
				t.Errorf("config file %q", s.Config)
			}
		})
	}
}

func TestServices(t *testing.T) {
	s := mustLoad(t, sources{
		file: "service: main\nmax_backward: 1s\nservices:\n  main: {bit_ts: 42}\n  orders:\n    max_throughput_per_ms: 512\n    external_secret_file: none\n    max_backward: -1\n  empty: {}\n",
		env:  []string{"KAZAHANA_EXTERNAL_SECRET_FILE=/secret"},
		args: []string{"--max-throughput-per-ms=9", "--startup-wait=0"},
	})
	services := s.Services()
	if names := slices.Sorted(maps.Keys(services)); !slices.Equal(names, []string{"empty", "main", "orders"}) {
		t.Fatal(names)
	}
	inherited := s.base
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

// A flag for every key and a key for every flag; the help states each default.
func TestFlagsAndKeys(t *testing.T) {
	fields := reflect.TypeFor[Flags]()
	var flags []string
	for i := range fields.NumField() {
		tag := fields.Field(i).Tag
		name := strings.ReplaceAll(tag.Get("name"), "-", "_")
		flags = append(flags, name)
		k, known := findKey(name)
		if !known {
			t.Errorf("flag --%s has no key", tag.Get("name"))
		}
		help := tag.Get("help")
		if k.def != "" && !strings.Contains(help, "(default "+k.def) {
			t.Errorf("the help of --%s does not say (default %s): %s", tag.Get("name"), k.def, help)
		}
		if !strings.Contains(help, "default ") {
			t.Errorf("the help of --%s states no default", tag.Get("name"))
		}
		if k.perService != strings.HasPrefix(tag.Get("group"), "IDs (each service") {
			t.Errorf("--%s is in the group %q", tag.Get("name"), tag.Get("group"))
		}
	}
	if names := keyNames(anyKey); !slices.Equal(flags, names) {
		t.Errorf("flags %v\nkeys  %v", flags, names)
	}
	for _, name := range flags {
		if (&environment{variables: map[string]string{
			"KUBERNETES_SERVICE_HOST": "x", "KAZAHANA_SERVICE_HOST": "x", "KAZAHANA_SERVICE_PORT": "1",
		}}).isServiceLink(variable(name)) {
			t.Errorf("%s would be taken for a service link", variable(name))
		}
	}
}

func TestGiven(t *testing.T) {
	f := Flags{Config: Given("none"), StateDir: Given("/s"), MaxBackward: Given("-1")}
	s, err := f.Load(Process{Now: testNow})
	if err != nil {
		t.Fatal(err)
	}
	if s.StateDir != "/s" || s.Provider != "sqlite:/s/leases.db" || s.base.MaxBackward >= 0 {
		t.Errorf("%+v", s)
	}
}

func TestLogFormat(t *testing.T) {
	for _, c := range []struct {
		format   LogFormat
		terminal bool
		want     LogFormat
	}{
		{LogAuto, true, LogConsole}, {LogAuto, false, LogJSON},
		{LogJSON, true, LogJSON}, {LogConsole, false, LogConsole},
	} {
		if got := c.format.Resolve(c.terminal); got != c.want {
			t.Errorf("%s, terminal %v: %s, want %s", c.format, c.terminal, got, c.want)
		}
	}
}

// The layout without a lease is the one that IDs are explained by.
func TestDefaultLayout(t *testing.T) {
	base := mustLoad(t, sources{}).base
	if base.BitTS != snowflake.DefaultBitTS || base.DefaultEpoch.UnixMilli() != snowflake.DefaultEpochMS {
		t.Errorf("bit_ts %d, default_epoch %v", base.BitTS, base.DefaultEpoch)
	}
}
