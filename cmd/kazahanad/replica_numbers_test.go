package main

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// numberRow is a row of a table of docs/replica-numbers.md: flags, then the command
// or code.
var numberRow = regexp.MustCompile("(?m)^\\| [^|]+ \\| `(--[^`]+)` \\| `?([^|`]*)")

func numbersPage(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/replica-numbers.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// The flags of every row give the program a number in its range, where it looks
// for it.
func TestReplicaNumbers(t *testing.T) {
	ring.All(t)
	t.Parallel()
	rows := numberRow.FindAllStringSubmatch(numbersPage(t), -1)
	if len(rows) < 12 {
		t.Fatalf("%d rows", len(rows))
	}
	s := testkit.NewSite(t)
	for i, row := range rows {
		flags, command := strings.Fields(row[1]), row[2]
		highest, err := strconv.ParseInt(flags[slices.Index(flags, "--max")+1], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		url := fmt.Sprintf("sqlite:%s?pool=p%d", s.Path("numbers.db"), i)
		for _, more := range []struct {
			above  int64
			params string
		}{{8191, "&bit_seq=5"}, {65535, "&bit_ts=40"}} { // as the page says of large numbers
			if highest > more.above {
				url = strings.TrimSuffix(url, "&bit_seq=5") + more.params
			}
		}
		if highest > 65535 {
			url += "&bit_seq=0"
		}
		args := append([]string{"run", "-q", "--provider", url}, flags...)
		said := strings.Split(s.Kazahanad(append(args, "--", "sh", "-c", `env; echo "given $0"`, command)...).OK(t), "\n")
		n := variable(said, "KAZAHANA_MACHINE_ID")
		number, err := strconv.ParseInt(n, 10, 64)
		if err != nil || number > highest || slices.Contains(flags, "--min") && number < 1 {
			t.Errorf("%s gave %q", row[1], n)
		}
		if at := slices.Index(flags, "--env"); at >= 0 && variable(said, flags[at+1]) != n {
			t.Errorf("%s: %s is %q, and the number %s", row[1], flags[at+1], variable(said, flags[at+1]), n)
		}
		if strings.Contains(command, "{}") && !slices.Contains(said, "given "+strings.ReplaceAll(command, "{}", n)) {
			t.Errorf("%s: the command did not get %s: %q", command, n, said)
		}
	}
}

func variable(lines []string, name string) string {
	for _, line := range lines {
		if value, found := strings.CutPrefix(line, name+"="); found {
			return value
		}
	}
	return ""
}

// What the manifest and the Compose file start is a command line of kazahanad.
func TestReplicaNumberManifests(t *testing.T) {
	ring.All(t)
	t.Parallel()
	s := testkit.NewSite(t)
	page := numbersPage(t)
	_, compose, _ := strings.Cut(page, "```yml\n")
	compose, _, _ = strings.Cut(compose, "```")
	var file struct {
		Services map[string]struct {
			Image               string
			Entrypoint, Command []string
			Environment         map[string]string
			Deploy              struct{ Replicas int }
			DependsOn           []string `yaml:"depends_on"`
			Volumes             []string
		}
		Volumes map[string]any
	}
	decoder := yaml.NewDecoder(strings.NewReader(compose))
	decoder.KnownFields(true)
	if err := decoder.Decode(&file); err != nil {
		t.Fatal(err)
	}
	app := file.Services["app"]
	starts := map[string][]string{"compose": append(app.Entrypoint, app.Command...)}
	pod := readManifests(t, "replica-number")[0].Spec.Template.Spec.Containers[0]
	starts["kubernetes"] = append(pod.Command, pod.Args...)
	for name, start := range starts {
		args := append([]string{}, start[1:slices.Index(start, "--")+1]...)
		args = slices.Insert(args, 1, "-q", "--provider", "sqlite:"+s.Path(name+".db"))
		said := strings.Split(s.Kazahanad(append(args, "env")...).OK(t), "\n")
		if n := variable(said, "TSID_NODE"); n == "" || n != variable(said, "KAZAHANA_MACHINE_ID") {
			t.Errorf("%s: %v gave TSID_NODE %q", name, start, n)
		}
	}
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("there is no systemd-analyze: scripts/setup installs it")
	}
	_, unit, _ := strings.Cut(page, "```ini\n")
	unit, _, _ = strings.Cut(unit, "```")
	at := s.Path("numbered@.service")
	testkit.WriteFile(t, at, strings.NewReplacer("/usr/bin/kazahanad", "/bin/true", "User=numbered", "User=daemon").Replace(unit))
	if out, err := exec.Command("systemd-analyze", "verify", at).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze: %v\n%s", err, out)
	}
	command := strings.Fields(regexp.MustCompile(`ExecStart=\S+ (.*)`).FindStringSubmatch(unit)[1])
	command = append(command[:slices.Index(command, "--")+1], "env")
	command[slices.Index(command, "--provider")+1] = "sqlite:" + s.Path("numbers.db")
	command = slices.Insert(command, 1, "-q")
	if n := variable(strings.Split(s.Kazahanad(command...).OK(t), "\n"), "TSID_NODE"); n == "" {
		t.Error("the unit sets no TSID_NODE")
	}
}
