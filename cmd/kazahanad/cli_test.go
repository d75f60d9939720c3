package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit"
)

func TestIDFormats(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Start()
	last := uint64(s.Dial().ID())
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
		{[]string{"--socket", s.Socket}, 1, parseDecimal},
		{[]string{"--socket", "unix://" + s.Socket}, 1, parseDecimal},
		{[]string{"--regular-only", "--timeout", "30s"}, 1, parseDecimal},
	} {
		lines := strings.Split(strings.TrimSuffix(s.Kazahanad(append([]string{"id"}, c.args...)...).OK(t), "\n"), "\n")
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
	testkit.DecodeJSON(t, s.Kazahanad("id", "-n", "5", "--format=json").OK(t), &texts)
	if first, err := parseDecimal(texts[0]); len(texts) != 5 || err != nil || first <= last {
		t.Errorf("%q after %d (%v)", texts, last, err)
	}
}

func parseDecimal(text string) (uint64, error) { return strconv.ParseUint(text, 10, 64) }

// typed runs a command line that asks no daemon in this process, without any environment.
func typed(t *testing.T, args ...string) testkit.Outcome {
	t.Helper()
	var out, err bytes.Buffer
	nothing := func(string) (string, bool) { return "", false }
	code := run(&system{ctx: t.Context(), out: &out, err: &err, lookup: nothing, uid: os.Geteuid(), now: time.Now}, args)
	return testkit.Outcome{Code: code, Stdout: out.String(), Stderr: err.String()}
}

func TestUsageErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args  string
		words []string
	}{
		{"frobnicate", []string{"frobnicate"}},
		{"sevre --socket x", []string{"sevre", "did you mean serve?"}},
		{"id --frobnicate", []string{"--frobnicate"}},
		{"id --formt hex", []string{"--formt", `did you mean --format?`}},
		{"id --format hexx", []string{"hexx", "external"}},
		{"id -n 0", []string{"-n", `"0"`, "65536"}},
		{"id -n 65537", []string{"65537", "65536"}},
		{"id -n many", []string{"many"}},
		{"id surplus", []string{"surplus"}},
		{"id --socket unix://host/path", []string{"--socket", "unix:///"}},
		{"id --socket @abstract", []string{"--socket", "abstract"}},
		{"inspect", []string{"ID"}},
		{"inspect --bit-ts 70 1", []string{"--bit-ts"}},
		{"bounds", []string{"FROM"}},
		{"sql oracle", []string{"oracle", "postgres"}},
		{"sql sqlite --bit-ts 70", []string{"--bit-ts"}},
		{"sql mysql --epoch 0001-01-01T00:00:00Z", []string{"epoch"}},
		{"bounds yesterday", []string{"yesterday", "2026-11-01"}},
		{"bounds 2026-11-02 2026-11-01", []string{"2026-11-01", "2026-11-02"}},
		{"bounds 1999-01-01", []string{"1999-01-01", "holds no ID"}},
		{"state reset-floor", []string{"--yes"}},
		{"state frob", []string{"frob"}},
		{"--socket x", []string{"a subcommand is missing"}},
		{"serve redis://u:hunter2@h/0", []string{"unexpected argument", "u:xxxxx@h"}},
		{"state --json", []string{"show", "accept-epoch"}},
		{"serve --max-backward 5", []string{"--max-backward", "5s"}},
	} {
		typed(t, strings.Fields(c.args)...).Fails(t, exitUsage, c.words...)
	}
}

func TestHelp(t *testing.T) {
	t.Parallel()
	subcommands := []string{"serve", "id", "inspect", "bounds", "sql", "layout", "status", "health", "state show", "state accept-epoch", "state reset-floor", "bench", "version"}
	for _, args := range []string{"help", "--help"} {
		help := typed(t, strings.Fields(args)...).OK(t)
		for _, name := range subcommands {
			if !strings.Contains(help, name) {
				t.Errorf("kazahanad %s does not mention %s", args, name)
			}
		}
	}
	for _, name := range subcommands {
		help := typed(t, append(strings.Fields(name), "--help")...).OK(t)
		if !strings.Contains(help, "Usage: kazahanad "+name) {
			t.Errorf("the help of %s is %q", name, help)
		}
	}
	if help := typed(t, "help", "state", "show").OK(t); !strings.Contains(help, "Usage: kazahanad state show") {
		t.Errorf("help state show prints %q", help)
	}
	typed(t).Fails(t, exitUsage, "a subcommand is missing", "kazahanad --help")
}

func TestVersion(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	want := fmt.Sprintf("kazahanad %s (commit %s, %s)\n", testkit.Version, testkit.Commit, runtime.Version())
	if got := s.Kazahanad("version").OK(t); got != want {
		t.Errorf("version is %q, want %q", got, want)
	}
	var fields map[string]string
	testkit.DecodeJSON(t, s.Kazahanad("version", "--json").OK(t), &fields)
	if fields["version"] != testkit.Version || fields["commit"] != testkit.Commit || fields["go_version"] != runtime.Version() {
		t.Errorf("version --json is %q", fields)
	}
}

func TestInspectSpellings(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Start()
	id := s.Dial().ID()
	lease := s.Dial().Lease()
	for _, text := range []string{
		fmt.Sprint(int64(id)), snowflake.Codec{}.Encode(id),
	} {
		said := s.Kazahanad("inspect", "--", text).OK(t) // an external ID may begin with a dash
		for _, want := range []string{
			fmt.Sprint(int64(id)), fmt.Sprintf("0x%016x", int64(id)), snowflake.Codec{}.Encode(id), "regular",
			fmt.Sprintf("machine ID  %d", lease.MachineID), snowflake.FormatMS(testkit.UnixMS(id)), fmt.Sprintf("%064b", int64(id))[1:42],
		} {
			if !strings.Contains(said, want) {
				t.Errorf("inspect %s: %q is not in\n%s", text, want, said)
			}
		}
	}
	in := s.Inspected(id)
	if in.MachineID != lease.MachineID || in.BitID != 14 || in.BitSeq != 8 || in.EpochMS != snowflake.DefaultEpochMS || in.TimestampMS != testkit.UnixMS(id) {
		t.Errorf("inspect --json says %+v of an ID of %+v", in, lease)
	}
	// Several at once make an array.
	var several []map[string]any
	testkit.DecodeJSON(t, s.Kazahanad("inspect", "--json", fmt.Sprint(int64(id)), "1").OK(t), &several)
	if len(several) != 2 || several[1]["id"] != "1" || several[1]["kind"] != "regular" {
		t.Errorf("inspect --json of two IDs says %v", several)
	}
	s.Kazahanad("inspect", "0xzz").Fails(t, exitFailure, "0xzz")
}

// An ID of the layout js is below 2^53, and inspect tells the lease that it was made under.
func TestInspectJS(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Start("--layout", "js")
	id, lease := s.Dial().ID(), s.Dial().Lease()
	in := s.Inspected(id, "--layout", "js")
	if id >= 1<<53 || in.MachineID != lease.MachineID || in.BitID != 7 || in.BitSeq != 4 {
		t.Errorf("%d of %+v: inspect --json says %+v", int64(id), lease, in)
	}
}

func TestInspectWithSecret(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	testkit.WriteFile(t, s.Path("secret"), "a secret of the tests\n")
	s.Start("--external-secret-file", s.Path("secret"))
	external := strings.TrimSpace(s.Kazahanad("id", "--format", "external").OK(t))
	var in struct{ ID, External, Kind string }
	testkit.DecodeJSON(t, s.Kazahanad("inspect", "--json", "--external-secret-file", s.Path("secret"), "--", external).OK(t), &in)
	if in.External != external || in.Kind != "regular" {
		t.Errorf("inspect says %+v of %s", in, external)
	}
	var id uint64
	s.Dial().Must("ToInternal", &id, external)
	if fmt.Sprint(id) != in.ID {
		t.Errorf("the daemon reads %s as %d, inspect as %s", external, id, in.ID)
	}
	s.Kazahanad("inspect", "--external-secret-file", s.Path("nothing"), "1").Fails(t, exitFailure, s.Path("nothing"))
}

// The command and the daemon say the same of a day.
func TestBounds(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Start()
	id := s.Dial().ID()
	from := time.UnixMilli(testkit.UnixMS(id)).UTC().Truncate(24 * time.Hour)
	day := from.Format(time.DateOnly)
	var said struct{ Smallest, Largest string }
	testkit.DecodeJSON(t, s.Kazahanad("bounds", "--json", day).OK(t), &said)
	if text := s.Kazahanad("bounds", day).OK(t); text != said.Smallest+" "+said.Largest+"\n" {
		t.Errorf("bounds says %q, and %+v as JSON", text, said)
	}
	var pair []int64
	s.Dial().Must("Bounds", &pair, from.UnixMilli(), from.Add(24*time.Hour).UnixMilli())
	if fmt.Sprint(pair[0]) != said.Smallest || fmt.Sprint(pair[1]) != said.Largest || pair[0] > int64(id) || int64(id) > pair[1] {
		t.Errorf("of %d the daemon says %v, and the command %+v", id, pair, said)
	}
}

func TestStatusFields(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	d := s.Start()
	s.Kazahanad("id", "-n", "100").OK(t)
	s.Dial().Lease()
	var st map[string]any
	testkit.DecodeJSON(t, s.Kazahanad("status", "--json").OK(t), &st)
	for field, want := range map[string]any{
		"version": testkit.Version, "commit": testkit.Commit, "go_version": runtime.Version(), "pid": float64(d.PID()),
		"socket": s.Socket, "state_dir": s.State, "provider": "sqlite:" + s.State + "/leases.db",
		"scope": "host", "mode": "regular", "clock_off_ms": 0.0,
	} {
		if st[field] != want {
			t.Errorf("%s is %v, want %v", field, st[field], want)
		}
	}
	services := st["services"].([]any)
	svc := services[0].(map[string]any)
	if issued := svc["ids_issued"].(map[string]any); issued["regular"].(float64) < 100 || issued["fallback_random"] != 0.0 {
		t.Errorf("ids_issued is %v", issued)
	}
	lease := svc["leases"].([]any)[0].(map[string]any)
	human := s.Kazahanad("status").OK(t)
	for _, want := range []string{"regular", "host: ", s.Socket, s.State, fmt.Sprint(d.PID()), testkit.Version, "service default",
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
	s.Kazahanad("health").Fails(t, exitFailure, s.Socket)
	if got := s.Kazahanad("health", "-q"); got.Code != exitFailure || got.Stdout+got.Stderr != "" {
		t.Errorf("health -q without a daemon: %+v", got)
	}
	d := s.Start()
	s.Dial().ID()
	if said := s.Kazahanad("health").OK(t); said != "ok: regular\n" {
		t.Errorf("health says %q", said)
	}
	if said := s.Kazahanad("health", "--quiet").OK(t); said != "" {
		t.Errorf("health --quiet says %q", said)
	}
	// It takes no ID to ask.
	if n := testkit.Issued(s.Dial().Status()); n != 1 {
		t.Errorf("%d IDs were made, want the one that was asked for", n)
	}
	d.Terminate()
	s.Kazahanad("health").Fails(t, exitFailure, s.Socket)
}

// The command waits for its answer as long as it was told to, and it shows the daemon's reason
// when there is one.
func TestIDTimeout(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Start("--max-throughput-per-ms", "1")
	s.Dial().Lease() // without one, the cause would be that
	s.Kazahanad("id", "-n", "65536", "--timeout", "200ms").Fails(t, exitFailure, "TIMEOUT", "waited_ms=", "cause=sequence")
	s.Kazahanad("id", "--service", "other").Fails(t, exitFailure, "UNKNOWN_SERVICE", "other", "default")
}

func TestServeCheck(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	check := func(args ...string) testkit.Outcome { return s.kazahanadServe(append([]string{"--check"}, args...)...) }
	said := check().OK(t)
	for _, want := range []string{"ok", s.Socket, s.State, "sqlite:"} {
		if !strings.Contains(said, want) {
			t.Errorf("serve --check says %q, want %q in it", said, want)
		}
	}
	check("--provider", "sqlite:"+s.Path("dir/new.db")+"?term=5m").OK(t)
	check("--state-dir", "none", "--provider", "none:").OK(t)

	for _, c := range []struct {
		code  int
		words []string
		args  []string
	}{
		{exitUsage, []string{"trem", "term"}, []string{"--provider", "sqlite:" + s.Path("new.db") + "?trem=5m"}},
		{exitFailure, []string{"external_secret_file", s.Path("nothing")}, []string{"--external-secret-file", s.Path("nothing")}},
	} {
		check(c.args...).Fails(t, c.code, c.words...)
	}
	// It changes nothing.
	if left, err := os.ReadDir(s.Dir); err != nil || len(left) != 0 {
		t.Errorf("serve --check left %v behind (%v)", left, err)
	}
	// The start itself judges alike.
	s.kazahanadServe("--provider", "frob:x").Fails(t, exitUsage, "frob", "sqlite:")
	s.kazahanadServe("--external-secret-file", s.Path("nothing")).Fails(t, exitFailure, "external_secret_file", s.Path("nothing"))
}

// kazahanadServe runs serve where it ends by itself.
func (s *site) kazahanadServe(args ...string) testkit.Outcome {
	s.T.Helper()
	return testkit.RunCommand(s.T, s.Command(s.ServeArgs(args...)...))
}
