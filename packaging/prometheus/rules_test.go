// Package prometheus tests the alert rules with Prometheus' own tool.
package prometheus

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
	"go.yaml.in/yaml/v3"
)

const (
	rulesFile = "kazahana-alerts.yaml"
	testsFile = "kazahana-alerts_test.yaml"
	runbook   = "../../docs/runbook.md"
	// runbookURL is where the annotations say that the runbook is.
	runbookURL = "https://github.com/kazahana/kazahana/blob/main/docs/runbook.md#"
)

// rule is one of the rules file.
type rule struct {
	Alert       string            `yaml:"alert"`
	Record      string            `yaml:"record"`
	Expr        string            `yaml:"expr"`
	For         time.Duration     `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

func readYAML(t *testing.T, path string, target any) {
	t.Helper()
	b, err := os.ReadFile(path)
	must.Succeed(t, err)
	if err := yaml.Unmarshal(b, target); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// alerts are the alerting rules of the file.
func alerts(t *testing.T) (all []rule) {
	t.Helper()
	var file struct {
		Groups []struct {
			Rules []rule `yaml:"rules"`
		} `yaml:"groups"`
	}
	readYAML(t, rulesFile, &file)
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			if r.Alert != "" {
				all = append(all, r)
			}
		}
	}
	if len(all) < 20 {
		t.Fatalf("only %d alerts found", len(all))
	}
	return all
}

// promtool runs Prometheus' tool on files of this directory.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	run(t, "promtool", args...)
}

func run(t *testing.T, program string, args ...string) string {
	t.Helper()
	ring.All(t)
	out, err := exec.Command(ring.Program(t, program), args...).CombinedOutput()
	if err != nil {
		t.Errorf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// Alertmanager accepts the sample, and each severity takes its way.
func TestAlertmanager(t *testing.T) {
	const file = "alertmanager.yaml"
	if said := run(t, "amtool", "check-config", file); !strings.Contains(said, "4 inhibit rules") {
		t.Error(said)
	}
	for severity, receiver := range map[string]string{"page": "kazahana-page", "ticket": "kazahana-ticket", "info": "nobody"} {
		run(t, "amtool", "config", "routes", "test", "--config.file="+file, "--verify.receivers="+receiver,
			"alertname=KazahanaTargetDown", "job=kazahana", "severity="+severity)
	}
	// Every alert that the inhibition rules name exists.
	text, err := os.ReadFile(file)
	must.Succeed(t, err)
	for _, name := range regexp.MustCompile(`\bKazahana\w+\b`).FindAllString(string(text), -1) {
		if !slices.ContainsFunc(alerts(t), func(a rule) bool { return strings.HasPrefix(a.Alert, name) }) {
			t.Errorf("%s names %s, which is no alert", file, name)
		}
	}
}

func TestRulesAreValid(t *testing.T) {
	promtool(t, "check", "rules", "--lint=all", "--lint-fatal", rulesFile)
	promtool(t, "check", "config", "prometheus.yaml")
}

// Each alert fires when it should and is silent when it should be.
func TestRules(t *testing.T) {
	ring.Deep(t)
	promtool(t, "test", "rules", testsFile)
}

// expectedAlert is an alert that a test expects, with its labels.
var expectedAlert = regexp.MustCompile(`^ALERTS\{alertname="(\w+)", alertstate="firing"(.*)\}$`)

// The file that TestRules runs has both for each alert and severity, and the
// silence of all of them in ordinary times. No alert names a host, so none can fire for
// each host.
func TestEveryAlertIsTested(t *testing.T) {
	var file struct {
		Tests []struct {
			Queries []struct {
				Expr string `yaml:"expr"`
				Exp  []struct {
					Labels string `yaml:"labels"`
				} `yaml:"exp_samples"`
			} `yaml:"promql_expr_test"`
		} `yaml:"tests"`
	}
	readYAML(t, testsFile, &file)
	fires, silent := map[string]bool{}, map[string]bool{}
	ordinary := 0
	severity := regexp.MustCompile(`severity="(\w+)"`)
	for _, test := range file.Tests {
		for _, q := range test.Queries {
			asked := expectedAlert.FindStringSubmatch(q.Expr)
			if asked == nil {
				if strings.HasPrefix(q.Expr, "ALERTS{") && len(q.Exp) == 0 {
					ordinary++
				}
				continue
			}
			firing := map[string]bool{}
			for _, exp := range q.Exp {
				m := severity.FindStringSubmatch(exp.Labels)
				if m == nil || strings.Contains(exp.Labels, "instance=") {
					t.Fatalf("%s: %s has no severity, or the label of a host", asked[1], exp.Labels)
				}
				firing[m[1]], fires[asked[1]+" "+m[1]] = true, true
			}
			for _, word := range severities {
				if !firing[word] {
					silent[asked[1]+" "+word] = true
				}
			}
		}
	}
	for _, a := range alerts(t) {
		name := a.Alert + " " + a.Labels["severity"]
		if !fires[name] {
			t.Errorf("no test has %s fire", name)
		}
		if !silent[name] {
			t.Errorf("no test has %s silent", name)
		}
	}
	if ordinary < 10 {
		t.Errorf("ordinary times are looked at %d times", ordinary)
	}
}

// severities are all that alerts may have.
var severities = []string{"page", "ticket", "info"}

func TestAlertsSayWhatTheyShould(t *testing.T) {
	seen := map[string]bool{}
	for _, a := range alerts(t) {
		severity := a.Labels["severity"]
		if !slices.Contains(severities, severity) || len(a.Labels) != 1 {
			t.Errorf("%s has the labels %v, want a severity of %v", a.Alert, a.Labels, severities)
		}
		if seen[a.Alert+severity] {
			t.Errorf("%s is there twice as %s", a.Alert, severity)
		}
		seen[a.Alert+severity] = true
		if !strings.HasPrefix(a.Alert, "Kazahana") {
			t.Errorf("%s does not begin with Kazahana", a.Alert)
		}
		for _, name := range []string{"summary", "description"} {
			// One alert is about the lack of all series, which have labels.
			text := a.Annotations[name]
			if text == "" || !strings.Contains(text, "$labels.") && !strings.Contains(text, "$value") && a.Alert != "KazahanaNotScraped" {
				t.Errorf("%s: the %s says of nobody that it is about them: %q", a.Alert, name, text)
			}
		}
		if want := runbookURL + strings.ToLower(a.Alert); a.Annotations["runbook_url"] != want {
			t.Errorf("%s: runbook_url is %q, want %q", a.Alert, a.Annotations["runbook_url"], want)
		}
	}
}

var (
	// example is a query of a description, its text and arguments.
	example = regexp.MustCompile("\\{\\{ range printf `([^`]*)` ([^|]*) \\| query \\}\\}")
	// selector is a metric in it, with its labels.
	selector = regexp.MustCompile(`\b(?:kazahana_\w+|process_\w+|up)\b(\{[^}]*\})?`)
	// alertLabel is a label of the alert.
	alertLabel = regexp.MustCompile(`\$labels\.(\w+)`)
)

// The hosts that a description names are those of the alert: each query selects by
// the cluster, the job and each other label that the annotations tell.
func TestExamplesAreOfTheAlert(t *testing.T) {
	var queries []string
	for _, a := range alerts(t) {
		text := a.Annotations["description"]
		found := example.FindAllStringSubmatch(text, -1)
		if n := strings.Count(text, " query "); n != len(found) {
			t.Errorf("%s has %d queries, and %d that select by labels of the alert", a.Alert, n, len(found))
		}
		for _, m := range found {
			metrics := selector.FindAllStringSubmatch(m[1], -1)
			var want []string
			for _, metric := range metrics {
				for _, label := range regexp.MustCompile(`(\w+)=%q`).FindAllStringSubmatch(metric[1], -1) {
					want = append(want, "$labels."+label[1])
				}
				for _, label := range append(alertLabel.FindAllStringSubmatch(text+a.Annotations["summary"], -1), []string{"", "job"}, []string{"", "cluster"}) {
					if !strings.Contains(metric[1], label[1]+"=%q") {
						t.Errorf("%s: %s does not select by the %s of the alert", a.Alert, metric[0], label[1])
					}
				}
			}
			if got := strings.Fields(m[2]); !slices.Equal(got, want) {
				t.Errorf("%s: the arguments are %q, want %q", a.Alert, got, want)
			}
			queries = append(queries, strings.ReplaceAll(m[1], "%q", `"x"`))
		}
	}
	if len(queries) < 20 {
		t.Fatalf("only %d queries found", len(queries))
	}
	var rules []map[string]string
	for i, q := range queries {
		rules = append(rules, map[string]string{"record": fmt.Sprint("example:", i), "expr": q})
	}
	text, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "examples", "rules": rules}}})
	must.Succeed(t, err)
	path := filepath.Join(t.TempDir(), "rules.yaml")
	must.Succeed(t, os.WriteFile(path, text, 0o600))
	promtool(t, "check", "rules", path)
}

// Every alert has its entry in the runbook with the same sections, every entry
// an alert.
func TestRunbookHasEveryAlert(t *testing.T) {
	page, err := os.ReadFile(runbook)
	must.Succeed(t, err)
	var names []string
	for _, a := range alerts(t) {
		names = append(names, a.Alert)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	parts := regexp.MustCompile(`(?m)^## (Kazahana\w+)$`).FindAllStringSubmatchIndex(string(page), -1)
	var entries []string
	for i, at := range parts {
		name, end := string(page[at[2]:at[3]]), len(page)
		if i+1 < len(parts) {
			end = parts[i+1][0]
		}
		entries = append(entries, name)
		for _, section := range []string{"**Means.**", "**Urgent?**", "**See more.**", "**Do.**", "**Prevent.**"} {
			if !strings.Contains(string(page[at[1]:end]), section) {
				t.Errorf("the entry %s has no %s", name, section)
			}
		}
	}
	slices.Sort(entries)
	for _, name := range names {
		if !slices.Contains(entries, name) {
			t.Errorf("the runbook has no entry %s", name)
		}
	}
	for _, name := range entries {
		if !slices.Contains(names, name) {
			t.Errorf("the runbook has an entry %s, and no alert is called that", name)
		}
	}
	if len(entries) != len(slices.Compact(slices.Clone(entries))) {
		t.Error("the runbook has an entry twice")
	}
}

// The alerts, the page and the log call the same pools nearly full.
func TestPoolsHaveTheSameBoundsEverywhere(t *testing.T) {
	bounds := map[string]float64{"ticket": provider.LowShare, "page": provider.LeastShare}
	for _, a := range alerts(t) {
		if a.Alert == "KazahanaPoolNearlyFull" && !strings.HasSuffix(a.Expr, fmt.Sprintf(" < %v", bounds[a.Labels["severity"]])) {
			t.Errorf("%s: %s", a.Labels["severity"], a.Expr)
		}
	}
}
