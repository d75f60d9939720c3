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
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// numberRow is a row of a table of docs/replica-numbers.md: flags, then the command
// or code.
var numberRow = regexp.MustCompile("(?m)^\\| [^|]+ \\| `(--[^`]+)` \\| `?([^|`]*)")

func numbersPage(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/replica-numbers.md")
	must.Succeed(t, err)
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
		must.Succeed(t, err)
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
		for at, flag := range flags {
			if flag != "--env" {
				continue
			}
			name, want, isText := strings.Cut(flags[at+1], "=")
			if !isText {
				want = n
			}
			if got := variable(said, name); got != want {
				t.Errorf("%s: %s is %q, want %s", row[1], name, got, want)
			}
		}
		// Seed 001-6.
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
	var file struct {
		Services map[string]struct {
			Image               string
			Entrypoint, Command []string
			Environment         map[string]string
			Deploy              struct{ Replicas int }
			DependsOn           []string `yaml:"depends_on"`
			Volumes             []string
			Restart             string
		}
		Volumes map[string]any
	}
	decoder := yaml.NewDecoder(strings.NewReader(program(t, page, "yml")))
	decoder.KnownFields(true)
	must.Succeed(t, decoder.Decode(&file))
	app := file.Services["app"]
	starts := map[string][]string{"compose": append(app.Entrypoint, app.Command...)}
	pod := ofKind(t, readManifests(t, "replica-number"), "Deployment", "").Spec.Template.Spec.Containers[0]
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
	unit := program(t, page, "ini")
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

// numbersProgram prints the number, and those in the IDs of each library.
const numbersProgram = `
import cn.hutool.core.util.IdUtil;
import com.baomidou.mybatisplus.core.incrementer.DefaultIdentifierGenerator;
import io.hypersistence.tsid.TSID;

public class Numbers {
  public static void main(String[] args) {
    long n = Long.parseLong(System.getenv("KAZAHANA_MACHINE_ID"));
    long[] ids = {
      TSID.Factory.getTsid().toLong(),
      IdUtil.getSnowflake(n & 31, n >> 5).nextId(),
      new DefaultIdentifierGenerator(n & 31, n >> 5).nextId(null),
    };
    System.out.print(n);
    for (long id : ids) System.out.print(" " + (id >> 12 & 1023));
  }
}
`

// The number is in the IDs that Java libraries make, as the page sets them up.
func TestReplicaNumbersInJava(t *testing.T) {
	t.Parallel()
	ring.Deep(t)
	maven, java := ring.Program(t, "mvn"), ring.Program(t, "java")
	s := testkit.NewSite(t)
	testkit.WriteFile(t, s.Path("Numbers.java"), numbersProgram)
	for _, library := range []string{
		"io.hypersistence:hypersistence-tsid:2.1.4", "cn.hutool:hutool-core:5.8.36", "com.baomidou:mybatis-plus-core:3.5.12", "org.mybatis:mybatis:3.5.19",
	} {
		if out, err := exec.Command(maven, "-q", "dependency:copy", "-Dartifact="+library, "-DoutputDirectory="+s.Path("jars")).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", library, err, out)
		}
	}
	url := "sqlite:" + s.Path("numbers.db")
	for _, number := range []string{"0", "37", "1023"} {
		said := s.Kazahanad("run", "-q", "--provider", url, "--min", number, "--max", number, "--env", "TSID_NODE", "--",
			java, "-cp", s.Path("jars")+"/*", s.Path("Numbers.java")).OK(t)
		if want := strings.Join([]string{number, number, number, number}, " "); said != want {
			t.Errorf("the libraries have %q, want %q", said, want)
		}
	}
}
