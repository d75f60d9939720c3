package mutation

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

const module = "github.com/kazahana/kazahana/"

// judge is tests that may catch a mutation.
type judge struct {
	name     string
	packages []string // from the root
	args     []string
}

// key names the judge's packages.
func (j judge) key() string { return strings.Join(j.packages, " ") }

// roomTests is the name of the judge that is asked last.
const roomTests = "tests of its room"

// wholeOnly are the files with rules that only the whole worlds of test/proof run.
var wholeOnly = regexp.MustCompile(`^internal/(lock|sequence|record|placement|conn/(sqlitefile|postgresconn))/`)

// judges are asked in this order, until one catches the mutation. Judges that do not import the
// mutated package are left out.
func judges(m mutation) []judge {
	simulation := judge{"simulation", []string{"test/proof"}, []string{"-run=^TestNoTwoIDsAreEqual$", fmt.Sprint("-proof.seeds=", *seeds)}}
	whole := judge{"whole simulation", []string{"test/proof"}, []string{"-run=^TestSimulation$", fmt.Sprint("-proof.seeds=", *seeds)}}
	all := []judge{simulation, whole}
	switch {
	case wholeOnly.MatchString(m.file):
		all = all[1:]
	case path.Dir(m.file) != "internal/provider/pool": // only a SQLite file meets its rules of a fence
		all = all[:1]
	}
	return append(all,
		judge{"placement's simulation", []string{"internal/placement/driver"}, []string{"-run=^TestSimulation$", fmt.Sprint("-placement.seeds=", *seeds)}},
		judge{roomTests, rooms(m.file), nil},
	)
}

// rooms are the packages with tests of the file: its own, and packages that run its rules in a
// real store.
func rooms(file string) []string {
	own := path.Dir(file)
	switch own {
	case "internal/provider":
		return []string{own, "internal/provider/pool", "internal/record/sqlite"}
	case "internal/provider/pool":
		return []string{own, "internal/record/sqlite"}
	case "internal/conn/sqlitefile":
		return []string{own, "internal/record/sqlite"}
	case "internal/record":
		return []string{own, "internal/record/memory"}
	case "internal/placement":
		return []string{own, "internal/placement/storage"}
	}
	return []string{own}
}

// importsOfJudges are the imports of each judge of the mutations, by its key.
func importsOfJudges(t *testing.T, all []mutation) map[string][]string {
	t.Helper()
	imported := map[string][]string{}
	for _, m := range all {
		for _, j := range judges(m) {
			if imported[j.key()] == nil {
				imported[j.key()] = imports(t, j.packages)
			}
		}
	}
	return imported
}

// imports are the packages that each judge's tests import, directly or not.
func imports(t *testing.T, packages []string) []string {
	t.Helper()
	args := []string{"list", "-deps", "-test", "-f", "{{.ImportPath}}"}
	for _, p := range packages {
		args = append(args, "./"+p)
	}
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", cmd, err)
	}
	return strings.Fields(string(out))
}

// verdict is what a judge says.
type verdict struct {
	caught  bool
	hung    bool   // its tests did not end
	seconds string // how long its tests ran
	message string // of the test that failed
}

var (
	failedTest = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)
	failedLine = regexp.MustCompile(`(?m)^\s+\S+\.go:\d+: (.+)$`)
	idleLine   = regexp.MustCompile(`too little happens|too peaceful|happened \d+ times|never met`)                                   // a mutant that does nothing breaks no promise
	logLine    = regexp.MustCompile(`(?m)^\s+\S+\.go:\d+: .*(, no two equal|, no promise broken| through docs/model/Placement.tla)$`) // of what went well before
	panicLine  = regexp.MustCompile(`(?m)^panic: (.+?)( \[recovered.*)?$`)
	memoryPath = regexp.MustCompile(`/dev/shm/kazahana-live-[0-9]+`)
	timeLine   = regexp.MustCompile(`(?m)^FAIL\t\S+\t([0-9.]+)s$`)
)

// ask runs the judge's tests on the mutated program. Tests that hang are asked once more: a run of
// worlds has hung once in thousands, and the log has its goroutines then.
func (j judge) ask(t *testing.T, overlay string) verdict {
	t.Helper()
	v := j.run(t, overlay)
	if v.hung {
		v = j.run(t, overlay)
	}
	if v.hung {
		t.Errorf("%s did not end within %v twice; that catches nothing", j.name, limit)
	}
	return v
}

// ring is of the judge's tests: only a real Redis shows that a release is sent once.
func (j judge) ring() string {
	if j.name == roomTests && slices.Contains(j.packages, "internal/record/redis") {
		return "all"
	}
	return "fast"
}

// run runs the judge's tests once.
func (j judge) run(t *testing.T, overlay string) verdict {
	t.Helper()
	args := []string{"test", "-overlay=" + overlay, "-count=1", "-vet=off", "-failfast", "-timeout=" + limit.String()}
	for _, p := range j.packages {
		args = append(args, "./"+p)
	}
	cmd := exec.CommandContext(t.Context(), "go", append(args, j.args...)...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "KZTEST_RING="+j.ring(), "KZTEST_SAMPLE=")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	text := out.String()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return verdict{}
	case !errors.As(err, &exit):
		t.Fatal(err)
	case strings.Contains(text, "[build failed]") || strings.Contains(text, "[setup failed]"):
		t.Fatalf("the mutant does not compile:\n%s", text)
	case strings.Contains(text, "panic: test timed out"):
		t.Logf("%s did not end within %v:\n%.20000s", j.name, limit, text)
		return verdict{hung: true}
	}
	v := verdict{caught: true, message: first(failedLine, logLine.ReplaceAllString(text, ""))}
	if idleLine.MatchString(v.message) {
		return verdict{}
	}
	if crash := first(panicLine, text); crash != "" {
		v.message = "panic: " + crash
	}
	if name := first(failedTest, text); j.args == nil && name != "" {
		v.message = "`" + name + "`"
	}
	if v.message == "" {
		t.Fatalf("no test says what it found:\n%s", text)
	}
	v.message = cell(v.message)
	v.seconds = first(timeLine, text)
	return v
}

// cell is the beginning of a message, fit for a table.
func cell(message string) string {
	const most = 120
	message = memoryPath.ReplaceAllString(strings.ReplaceAll(message, "|", "/"), "")
	if runes := []rune(message); len(runes) > most {
		message = string(runes[:most]) + " ..."
	}
	if strings.ContainsAny(message, "{<[") && !strings.HasPrefix(message, "`") {
		message = "`" + strings.ReplaceAll(message, "`", "'") + "`" // no Markdown
	}
	return message
}

// first is what the pattern's group found first.
func first(pattern *regexp.Regexp, text string) string {
	if found := pattern.FindStringSubmatch(text); found != nil {
		return found[1]
	}
	return ""
}

// overlay is a file for go test -overlay: so only what imports the mutant is compiled anew.
func (m mutation) overlay(t *testing.T) string {
	t.Helper()
	file, err := filepath.Abs(filepath.Join(root, m.file))
	must.Succeed(t, err)
	dir := t.TempDir()
	mutant, list := filepath.Join(dir, "mutant.go"), filepath.Join(dir, "overlay.json")
	content, err := json.Marshal(map[string]any{"Replace": map[string]string{file: mutant}})
	must.Succeed(t, errors.Join(err, os.WriteFile(mutant, []byte(m.applied(t)), 0o600), os.WriteFile(list, content, 0o600)))
	return list
}

// concerns reports whether the judge's tests contain the mutated package.
func concerns(imported []string, m mutation) bool {
	return slices.Contains(imported, module+path.Dir(m.file))
}
