package main

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/snowflake"
)

func TestIDFormats(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start()
	last := uint64(s.dial().id())
	for _, c := range []struct {
		args []string
		n    int
		read func(line string) (uint64, error)
	}{
		{nil, 1, parseDecimal},
		{[]string{"-n", "5"}, 5, parseDecimal},
		{[]string{"-n", "5", "--format", "int"}, 5, parseDecimal},
		{[]string{"-n5", "--format=string"}, 5, func(line string) (uint64, error) {
			var text string
			if err := json.Unmarshal([]byte(line), &text); err != nil {
				return 0, err
			}
			return parseDecimal(text)
		}},
		{[]string{"-n", "5", "--format", "hex"}, 5, func(line string) (uint64, error) {
			if len(line) != 18 || !strings.HasPrefix(line, "0x") {
				return 0, fmt.Errorf("%q is not 0x and 16 digits", line)
			}
			return strconv.ParseUint(line[2:], 16, 64)
		}},
		{[]string{"-n", "5", "--format", "external"}, 5, func(line string) (uint64, error) {
			id, err := snowflake.Codec{}.Decode(line)
			return uint64(id), err
		}},
		{[]string{"-n", "65536"}, 65536, parseDecimal},
		{[]string{"--service", "default"}, 1, parseDecimal},
		{[]string{"--socket", s.socket}, 1, parseDecimal},
		{[]string{"--socket", "unix://" + s.socket}, 1, parseDecimal},
		{[]string{"--regular-only", "--timeout", "30s"}, 1, parseDecimal},
	} {
		lines := strings.Split(strings.TrimSuffix(s.kazahanad(append([]string{"id"}, c.args...)...).ok(t), "\n"), "\n")
		if len(lines) != c.n {
			t.Errorf("id %q printed %d lines", c.args, len(lines))
		}
		for _, line := range lines {
			id, err := c.read(line)
			if err != nil || id <= last {
				t.Fatalf("id %q: %q after %d (%v)", c.args, line, last, err)
			}
			last = id
		}
	}
	var texts []string
	decodeJSON(t, s.kazahanad("id", "-n", "5", "--format", "json").ok(t), &texts)
	if len(texts) != 5 {
		t.Fatalf("--format json gave %q", texts)
	}
	for _, text := range texts {
		id, err := parseDecimal(text)
		if err != nil || id <= last {
			t.Errorf("--format json: %q after %d (%v)", text, last, err)
		}
		last = id
	}
}

func parseDecimal(text string) (uint64, error) { return strconv.ParseUint(text, 10, 64) }

func TestUsageErrors(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, c := range []struct {
		args  string
		words []string
	}{
		{"frobnicate", []string{"frobnicate"}},
		{"id --frobnicate", []string{"--frobnicate"}},
		{"id --formt hex", []string{"--formt", `did you mean "--format"?`}},
		{"id --format hexx", []string{"hexx", "external"}},
		{"id -n 0", []string{"-n 0", "65536"}},
		{"id -n 65537", []string{"65537", "65536"}},
		{"id -n many", []string{"many"}},
		{"id surplus", []string{"surplus"}},
		{"id --socket unix://host/path", []string{"--socket", "unix:///"}},
		{"id --socket @abstract", []string{"--socket", "abstract"}},
		{"inspect", []string{"id"}},
		{"inspect --bit-ts 70 1", []string{"--bit-ts"}},
		{"bounds", []string{"from"}},
		{"sql oracle", []string{"oracle", "postgres"}},
		{"sql sqlite --bit-ts 70", []string{"--bit-ts"}},
		{"sql mysql --epoch 0001-01-01T00:00:00Z", []string{"epoch"}},
		{"bounds yesterday", []string{"yesterday", "2026-11-01"}},
		{"bounds 2026-11-02 2026-11-01", []string{"2026-11-01", "2026-11-02"}},
		{"bounds 1999-01-01", []string{"1999-01-01", "holds no ID"}},
		{"state reset-floor", []string{"--yes"}},
		{"state frob", []string{"frob"}},
		{"--socket x", []string{"--socket", "kazahanad serve --socket"}},
		{"serve --frobnicate", []string{"--frobnicate"}},
		{"serve --max-bakward 5s", []string{"--max-bakward", `did you mean "--max-backward"?`}},
		{"serve --max-backward", []string{"--max-backward"}},
		{"serve --max-backward 5", []string{"max_backward", "5s"}},
		{"serve --fallback cache", []string{"fallback", "did you mean cached?"}},
		{"serve --socket-mode 999", []string{"socket_mode"}},
		{"serve --config /nonexistent.yaml", []string{"/nonexistent.yaml"}},
		{"serve --state-dir none", []string{"state_dir", "provider"}},
	} {
		s.kazahanad(strings.Fields(c.args)...).fails(t, exitUsage, c.words...)
	}
}

func TestHelp(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	subcommands := []string{"serve", "id", "inspect", "bounds", "sql", "status", "health", "state show", "state accept-epoch", "state reset-floor", "bench", "version"}
	for _, args := range []string{"", "--help"} {
		help := s.kazahanad(strings.Fields(args)...).ok(t)
		for _, name := range subcommands {
			if !strings.Contains(help, name) {
				t.Errorf("kazahanad %s does not mention %s", args, name)
			}
		}
	}
	for _, name := range subcommands {
		help := s.kazahanad(append(strings.Fields(name), "--help")...).ok(t)
		if !strings.Contains(help, "Usage: kazahanad "+name) {
			t.Errorf("the help of %s is %q", name, help)
		}
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	want := fmt.Sprintf("kazahanad %s (commit %s, %s)\n", testVersion, testCommit, runtime.Version())
	if got := s.kazahanad("version").ok(t); got != want {
		t.Errorf("version is %q, want %q", got, want)
	}
}

func TestInspectSpellings(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start()
	id := s.dial().id()
	lease := s.dial().lease()
	for _, text := range []string{
		fmt.Sprint(int64(id)), fmt.Sprintf("0x%x", int64(id)), fmt.Sprintf("0X%016X", int64(id)), snowflake.Codec{}.Encode(id),
	} {
		said := s.kazahanad("inspect", "--", text).ok(t) // an external ID may begin with a dash
		for _, want := range []string{
			fmt.Sprint(int64(id)), fmt.Sprintf("0x%016x", int64(id)), snowflake.Codec{}.Encode(id), "regular",
			fmt.Sprintf("machine ID  %d", lease.MachineID), snowflake.FormatMS(unixMS(id)), fmt.Sprintf("%064b", int64(id))[1:42],
		} {
			if !strings.Contains(said, want) {
				t.Errorf("inspect %s: %q is not in\n%s", text, want, said)
			}
		}
	}
	in := s.inspected(id)
	if in.MachineID != lease.MachineID || in.BitID != 14 || in.BitSeq != 8 || in.EpochMS != snowflake.DefaultEpochMS || in.TimestampMS != unixMS(id) {
		t.Errorf("inspect --json says %+v of an ID of %+v", in, lease)
	}
	// Several at once make an array.
	var several []map[string]any
	decodeJSON(t, s.kazahanad("inspect", "--json", fmt.Sprint(int64(id)), "1").ok(t), &several)
	if len(several) != 2 || several[1]["id"] != "1" || several[1]["kind"] != "regular" {
		t.Errorf("inspect --json of two IDs says %v", several)
	}
	for _, wrong := range []string{"0xzz", "18446744073709551615", "AAAAAAAAAA", "AAAAAAAAAA*", "ASNFZ4mrze9"} {
		s.kazahanad("inspect", wrong).fails(t, exitFailure, wrong)
	}
}

func TestInspectWithSecret(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	writeFile(t, s.path("secret"), "a secret of the tests\n")
	s.start("--external-secret-file", s.path("secret"))
	external := strings.TrimSpace(s.kazahanad("id", "--format", "external").ok(t))
	var in struct{ ID, External, Kind string }
	decodeJSON(t, s.kazahanad("inspect", "--json", "--external-secret-file", s.path("secret"), "--", external).ok(t), &in)
	if in.External != external || in.Kind != "regular" {
		t.Errorf("inspect says %+v of %s", in, external)
	}
	var id uint64
	s.dial().must("ToInternal", &id, external)
	if fmt.Sprint(id) != in.ID {
		t.Errorf("the daemon reads %s as %d, inspect as %s", external, id, in.ID)
	}
	s.kazahanad("inspect", "--external-secret-file", s.path("nothing"), "1").fails(t, exitFailure, s.path("nothing"))
}

func TestBoundsHoldIDsOfNow(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start()
	id := s.dial().id()
	at := time.UnixMilli(unixMS(id)).UTC()
	if off := time.Since(at); off < -patience || off > patience {
		t.Errorf("an ID of now says %v", at)
	}
	within := func(args ...string) bool {
		t.Helper()
		var smallest, largest int64
		said := s.kazahanad(append([]string{"bounds"}, args...)...).ok(t)
		if n, err := fmt.Sscanf(said, "%d %d\n", &smallest, &largest); n != 2 || err != nil || smallest > largest {
			t.Fatalf("bounds %q says %q", args, said)
		}
		return smallest <= int64(id) && int64(id) <= largest
	}
	day := func(d int) string { return at.AddDate(0, 0, d).Format(time.DateOnly) }
	for _, c := range []struct {
		args []string
		want bool
	}{
		{[]string{day(0)}, true}, {[]string{day(-1)}, false}, {[]string{day(1)}, false},
		{[]string{day(0), day(1)}, true}, {[]string{day(-1), day(0)}, false}, {[]string{day(-7), day(1)}, true},
		{[]string{at.Format(time.RFC3339Nano)}, true},
		{[]string{at.Add(-time.Millisecond).Format(time.RFC3339Nano)}, false},
		{[]string{at.Add(time.Millisecond).Format(time.RFC3339Nano)}, false},
		{[]string{at.Add(-time.Minute).Format(time.RFC3339), at.Add(time.Minute).In(time.FixedZone("", 9*3600)).Format(time.RFC3339)}, true},
		{[]string{"--epoch", "2026-01-02T00:00:00Z", day(0)}, false},
	} {
		if got := within(c.args...); got != c.want {
			t.Errorf("bounds %q hold the ID %d of %v: %v", c.args, id, at, got)
		}
	}
	var spelled struct{ Smallest, Largest string }
	decodeJSON(t, s.kazahanad("bounds", "--json", day(0)).ok(t), &spelled)
	if fmt.Sprintf("%s %s\n", spelled.Smallest, spelled.Largest) != s.kazahanad("bounds", day(0)).ok(t) {
		t.Errorf("bounds --json says %+v", spelled)
	}
	var pair []uint64
	from := at.Truncate(24 * time.Hour)
	s.dial().must("Bounds", &pair, from.UnixMilli(), from.Add(24*time.Hour).UnixMilli())
	if fmt.Sprint(pair[0]) != spelled.Smallest || fmt.Sprint(pair[1]) != spelled.Largest {
		t.Errorf("the daemon's bounds are %v, and the command's %+v", pair, spelled)
	}
}

func TestStatusFields(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	d := s.start()
	s.kazahanad("id", "-n", "100").ok(t)
	s.dial().lease()
	var st map[string]any
	decodeJSON(t, s.kazahanad("status", "--json").ok(t), &st)
	for field, want := range map[string]any{
		"version": testVersion, "commit": testCommit, "go_version": runtime.Version(), "pid": float64(d.pid()),
		"socket": s.socket, "state_dir": s.state, "provider": "sqlite:" + s.state + "/leases.db",
		"scope": "host", "mode": "regular", "clock_off_ms": 0.0,
	} {
		if st[field] != want {
			t.Errorf("%s is %v, want %v", field, st[field], want)
		}
	}
	for _, field := range []string{"features", "promise", "started_ms", "uptime_ms", "clock_ms", "connections", "in_flight", "requests_total", "services"} {
		if _, there := st[field]; !there {
			t.Errorf("there is no %s", field)
		}
	}
	services := st["services"].([]any)
	svc := services[0].(map[string]any)
	for field, want := range map[string]any{
		"service": "default", "mode": "regular", "cause": "", "failures": 0.0, "epoch_ms": float64(snowflake.DefaultEpochMS),
		"bit_ts": 41.0, "throughput_per_ms": 256.0, "max_throughput_per_ms": 256.0, "fallback": "cached+random",
		"offered_epoch_ms": nil, "cached_lease": nil, "clock_backward_events": 0.0,
	} {
		if got, there := svc[field]; !there || got != want {
			t.Errorf("services[0].%s is %v (%v), want %v", field, got, there, want)
		}
	}
	if issued := svc["ids_issued"].(map[string]any); issued["regular"].(float64) < 100 || issued["fallback_cached"] != 0.0 || issued["fallback_random"] != 0.0 {
		t.Errorf("ids_issued is %v", issued)
	}
	lease := svc["leases"].([]any)[0].(map[string]any)
	if ms := lease["remaining_ms"].(float64); ms <= 0 || ms > (10*time.Minute).Seconds()*1000 || lease["usable"] != true {
		t.Errorf("the lease is %v", lease)
	}
	human := s.kazahanad("status").ok(t)
	for _, want := range []string{"regular", "host: ", s.socket, s.state, fmt.Sprint(d.pid()), testVersion, "service default",
		fmt.Sprintf("machine ID %.0f (14/8 bits), ends in ", lease["machine_id"])} {
		if !strings.Contains(human, want) {
			t.Errorf("status does not say %q:\n%s", want, human)
		}
	}
	if strings.Contains(human, "cause") {
		t.Errorf("status gives a cause while all is well:\n%s", human)
	}
}

func TestHealth(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.kazahanad("health").fails(t, exitFailure, s.socket)
	if got := s.kazahanad("health", "-q"); got.code != exitFailure || got.stdout+got.stderr != "" {
		t.Errorf("health -q without a daemon: %+v", got)
	}
	d := s.start()
	s.dial().id()
	if said := s.kazahanad("health").ok(t); said != "ok: regular\n" {
		t.Errorf("health says %q", said)
	}
	if said := s.kazahanad("health", "--quiet").ok(t); said != "" {
		t.Errorf("health --quiet says %q", said)
	}
	// It takes no ID to ask.
	if n := issued(s.dial().status()); n != 1 {
		t.Errorf("%d IDs were made, want the one that was asked for", n)
	}
	d.terminate()
	s.kazahanad("health").fails(t, exitFailure, s.socket)
}

// The command waits for its answer as long as it was told to, and the daemon's
// reason is what it shows when the daemon has one.
func TestIDTimeout(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start("--max-throughput-per-ms", "1")
	s.kazahanad("id", "-n", "65536", "--timeout", "200ms").fails(t, exitFailure, "TIMEOUT", "waited_ms=", "cause=sequence")
	s.kazahanad("id", "--service", "other").fails(t, exitFailure, "UNKNOWN_SERVICE", "other", "default")
}

func TestServeCheck(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	check := func(args ...string) outcome { return s.kazahanadServe(append([]string{"--check"}, args...)...) }
	said := check().ok(t)
	for _, want := range []string{"ok", s.socket, s.state, "sqlite:"} {
		if !strings.Contains(said, want) {
			t.Errorf("serve --check says %q, want %q in it", said, want)
		}
	}
	check("--provider", "none:").ok(t)
	check("--provider", "static:17").ok(t)
	check("--provider", "sqlite:"+s.path("new.db")+"?term=5m").ok(t)
	check("--provider", "sqlite:"+s.path("dir/new.db")).ok(t)
	check("--state-dir", "none", "--provider", "none:").ok(t)

	for _, c := range []struct {
		code  int
		words []string
		args  []string
	}{
		{exitUsage, []string{"trem", "term"}, []string{"--provider", "sqlite:" + s.path("new.db") + "?trem=5m"}},
		{exitUsage, []string{"frob", "sqlite:"}, []string{"--provider", "frob:x"}},
		{exitUsage, []string{"provider"}, []string{"--provider", "frob"}},
		{exitUsage, []string{"relative"}, []string{"--provider", "sqlite:leases.db"}},
		{exitUsage, []string{"fallback", "none:"}, []string{"--provider", "none:", "--fallback", "none"}},
		{exitUsage, []string{"acquire_retry_interval"}, []string{"--acquire-retry-interval", "2m"}},
		{exitUsage, []string{"static:", "services"}, []string{"--provider", "static:1", "--services", "{a: {}}"}},
		{exitFailure, []string{"external_secret_file", s.path("nothing")}, []string{"--external-secret-file", s.path("nothing")}},
	} {
		check(c.args...).fails(t, c.code, c.words...)
	}
	// It changes nothing.
	if left, err := os.ReadDir(s.dir); err != nil || len(left) != 0 {
		t.Errorf("serve --check left %v behind (%v)", left, err)
	}
	// The start itself judges alike.
	s.kazahanadServe("--provider", "frob:x").fails(t, exitUsage, "frob", "sqlite:")
	s.kazahanadServe("--external-secret-file", s.path("nothing")).fails(t, exitFailure, "external_secret_file", s.path("nothing"))
}

// kazahanadServe runs serve where it ends by itself.
func (s *site) kazahanadServe(args ...string) outcome {
	s.t.Helper()
	return runCommand(s.t, s.command(s.serveArgs(args...)...))
}

func TestUnknownKeys(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for text, words := range map[string][]string{
		"max_bakward: 5s": {"max_bakward", "did you mean max_backward?", "line 1"},
		"socket: /x\nservices: {a: {falback: none}}": {"services.a.falback", "did you mean fallback?", "line 2"},
		"services: {a: {socket: /x}}":                {"services.a.socket", "cannot differ"},
		"socket: [1":                                 {"config.yaml"},
		"provider: none:":                            {"config.yaml", `"none:"`},
		"max_backward: 5":                            {"max_backward", "line 1", "5s"},
	} {
		writeFile(t, s.path("config.yaml"), text)
		s.kazahanad("serve", "--check", "--config", s.path("config.yaml")).fails(t, exitUsage, words...)
	}
	cmd := s.command(s.serveArgs("--check")...)
	cmd.Env = s.environment("KAZAHANA_MAX_BAKWARD=5s")
	runCommand(t, cmd).fails(t, exitUsage, "KAZAHANA_MAX_BAKWARD", "did you mean KAZAHANA_MAX_BACKWARD?")
}

// In a pod the default provider would be a file of that pod's own.
func TestKubernetesNeedsAProvider(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	cmd := s.command(s.serveArgs()...)
	cmd.Env = s.environment("KUBERNETES_SERVICE_HOST=10.0.0.1")
	runCommand(t, cmd).fails(t, exitUsage, "provider", "Kubernetes")
	cmd = s.command(s.serveArgs("--check", "--provider", "sqlite:"+s.leases())...)
	cmd.Env = s.environment("KUBERNETES_SERVICE_HOST=10.0.0.1",
		"KAZAHANA_SERVICE_HOST=10.0.0.2", "KAZAHANA_SERVICE_PORT=1", "KAZAHANA_PORT=tcp://10.0.0.2:1")
	runCommand(t, cmd).ok(t)
}

// Flags outrank the environment, which outranks the file.
func TestSourcesOfSettings(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	writeFile(t, s.path("config.yaml"), fmt.Sprintf(
		"socket: %s\nstate_dir: %s\nmax_throughput_per_ms: 11\nfallback: cached\nservice: main\n", s.socket, s.path("from-file")))
	cmd := s.command("serve", "--max-throughput-per-ms", "33")
	cmd.Env = s.environment("KAZAHANA_CONFIG="+s.path("config.yaml"), "KAZAHANA_STATE_DIR="+s.state, "KAZAHANA_MAX_THROUGHPUT_PER_MS=22")
	s.launchCommand(cmd).awaitReady()
	st := s.dial().status()
	svc := st.Services[0]
	if st.StateDir != s.state || svc.MaxThroughput != 33 || svc.Fallback != "cached" || svc.Service != "main" {
		t.Errorf("state_dir %s, max_throughput_per_ms %d, fallback %s, service %s", st.StateDir, svc.MaxThroughput, svc.Fallback, svc.Service)
	}
}
