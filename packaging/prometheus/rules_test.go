// Package prometheus tests the alert rules with Prometheus' own tool.
package prometheus

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/provider"
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
	if err != nil {
		t.Fatal(err)
	}
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
	ring.All(t)
	tool := ring.Program(t, "promtool")
	if out, err := exec.Command(tool, args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func TestRulesAreValid(t *testing.T) {
	promtool(t, "check", "rules", "--lint=all", "--lint-fatal", rulesFile)
	promtool(t, "check", "config", "prometheus.yaml")
}

// Each alert fires when it should and is silent when it should be.
func TestRules(t *testing.T) { promtool(t, "test", "rules", testsFile) }

// The file that TestRules runs has both for each alert and severity, and the
// silence of all of them in ordinary times.
func TestEveryAlertIsTested(t *testing.T) {
	var file struct {
		Tests []struct {
			Alerts []struct {
				Name string `yaml:"alertname"`
				Exp  []struct {
					Labels map[string]string `yaml:"exp_labels"`
				} `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
			Queries []struct {
				Expr string `yaml:"expr"`
				Exp  []any  `yaml:"exp_samples"`
			} `yaml:"promql_expr_test"`
		} `yaml:"tests"`
	}
	readYAML(t, testsFile, &file)
	fires, silent := map[string]bool{}, map[string]bool{}
	ordinary := 0
	for _, test := range file.Tests {
		for _, a := range test.Alerts {
			severities := map[string]bool{}
			for _, exp := range a.Exp {
				fires[a.Name+" "+exp.Labels["severity"]] = true
				severities[exp.Labels["severity"]] = true
			}
			for _, severity := range []string{"warning", "critical"} {
				if !severities[severity] {
					silent[a.Name+" "+severity] = true
				}
			}
		}
		for _, q := range test.Queries {
			if strings.HasPrefix(q.Expr, "ALERTS{") && len(q.Exp) == 0 {
				ordinary++
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

func TestAlertsSayWhatTheyShould(t *testing.T) {
	seen := map[string]bool{}
	for _, a := range alerts(t) {
		severity := a.Labels["severity"]
		if severity != "warning" && severity != "critical" || len(a.Labels) != 1 {
			t.Errorf("%s has the labels %v, want a severity of warning or critical", a.Alert, a.Labels)
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
			if text == "" || !strings.Contains(text, "$labels.") && a.Alert != "KazahanaNotScraped" {
				t.Errorf("%s: the %s says of nobody that it is about them: %q", a.Alert, name, text)
			}
		}
		if want := runbookURL + strings.ToLower(a.Alert); a.Annotations["runbook_url"] != want {
			t.Errorf("%s: runbook_url is %q, want %q", a.Alert, a.Annotations["runbook_url"], want)
		}
	}
}

// Every alert has its entry in the runbook with the same sections, every entry
// an alert.
func TestRunbookHasEveryAlert(t *testing.T) {
	page, err := os.ReadFile(runbook)
	if err != nil {
		t.Fatal(err)
	}
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

// The alerts, the page, the log and doctor call the same pools nearly full.
func TestPoolsHaveTheSameBoundsEverywhere(t *testing.T) {
	bounds := map[string]float64{"warning": provider.LowShare, "critical": provider.LeastShare}
	for _, a := range alerts(t) {
		if a.Alert == "KazahanaPoolNearlyFull" && !strings.HasSuffix(a.Expr, fmt.Sprintf(" < %v", bounds[a.Labels["severity"]])) {
			t.Errorf("%s: %s", a.Labels["severity"], a.Expr)
		}
	}
}
