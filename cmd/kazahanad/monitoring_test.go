package main

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/certtest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/wire"
)

const alertRules = "../../packaging/prometheus/kazahana-alerts.yaml"

// dashboards are those to import, by title.
var dashboards = map[string]string{
	"kazahana fleet": "../../packaging/grafana/kazahana-fleet.json",
	"kazahana host":  "../../packaging/grafana/kazahana-host.json",
}

// exported is what processes show at /metrics.
type exported struct {
	types  map[string]string              // of families
	series map[string][]map[string]string // labels, by the series' name
}

var (
	promType   = regexp.MustCompile(`^# TYPE (\S+) (\S+)$`)
	promSeries = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? \S+$`)
	promLabel  = regexp.MustCompile(`([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"`)
)

// readMetrics reads Prometheus' text format.
func readMetrics(t *testing.T, text string) exported {
	t.Helper()
	e := exported{map[string]string{}, map[string][]map[string]string{}}
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		if m := promType.FindStringSubmatch(lines.Text()); m != nil {
			e.types[m[1]] = m[2]
		}
		if strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		m := promSeries.FindStringSubmatch(lines.Text())
		if m == nil {
			t.Fatalf("no series: %s", lines.Text())
		}
		labels := map[string]string{}
		for _, l := range promLabel.FindAllStringSubmatch(m[2], -1) {
			labels[l[1]] = l[2]
		}
		e.series[m[1]] = append(e.series[m[1]], labels)
	}
	return e
}

// with is what both show.
func (e exported) with(other exported) exported {
	both := exported{maps.Clone(e.types), maps.Clone(e.series)}
	maps.Copy(both.types, other.types)
	for name, series := range other.series {
		both.series[name] = slices.Concat(both.series[name], series)
	}
	return both
}

// provokedDaemon is what a daemon shows after much has gone wrong with it.
func provokedDaemon(t *testing.T) exported {
	s := newSite(t)
	d := s.LaunchShifted(0, s.Brief("--admin-listen", "unix:"+s.Path("admin.sock"), "--max-backward", "0",
		"--max-connections", "4", "--forward-hold", "0s", "--placement-authority", "a:1",
		"--memcached-listen", "unix:"+s.Path("memcached.sock"), "--http-listen", "unix:"+s.Path("http.sock"))...)
	d.AwaitReady()
	c := s.Dial()
	c.Lease()
	c.ID()
	c.IDs(10)
	var slow []uint64
	if err := c.Try("NextIDs", &slow, 65536, map[string]any{"timeout_ms": 1}); !isRefusal(err, wire.CodeTimeout) {
		t.Errorf("65,536 IDs in a millisecond: %v", err)
	}
	var lock, value any
	c.Must("Lock.Acquire", &lock, "key", map[string]any{"ttl_ms": 60_000})
	c.Must("Sequence.Next", &value, "key")
	c.Must("Placement.Register", &value, []string{"room"})
	await.Eventually(t, "a connection is turned away", func() bool {
		return isRefusal(s.Dial().Try("Ping", &value), wire.CodeOverloaded)
	})
	d.Set(-time.Minute)
	c.Refused(wire.CodeClockBackward)
	d.Set(0)
	mend := s.moveAway()
	c.AwaitMode(testkit.FallbackModes...)
	c.Refused(wire.CodeLeaseAcquisition, map[string]any{"regular_only": true})
	mend()
	d.Set(100 * 365 * 24 * time.Hour)
	c.Refused(wire.CodeTimestampOverflow)
	_, text := s.Get("/metrics")
	return readMetrics(t, text)
}

func isRefusal(err error, code wire.Code) bool {
	refusal, ok := err.(*wire.Error)
	return ok && refusal.Code == code
}

// provokedServer is what a lease server shows after some requests.
func provokedServer(t *testing.T) exported {
	s := newSite(t)
	const operator, host = "the-token-of-operators", "the-token-of-hosts"
	tokens := s.Path("tokens.yaml")
	testkit.WriteFile(t, tokens, fmt.Sprintf("- {token: %s, owner: o, scopes: [admin]}\n- {token: %s, owner: h, scopes: [leases]}\n", operator, host))
	server := s.StartLeaseServer("127.0.0.1:0", "--provider", "sqlite:"+s.Leases(), "--tokens-file", tokens)
	for token, want := range map[string]int{"a-token-of-nobody": 401, operator: 403, host: 200} {
		if status, body := server.Answer("POST", "/lease", token, nil); status != want {
			t.Errorf("a lease for %s: %d %s", token, status, body)
		}
	}
	status, text := server.Answer("GET", "/metrics", operator, nil)
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	return readMetrics(t, text)
}

// certified is what a lease server with a certificate shows.
func certified(t *testing.T) exported {
	s := newSite(t)
	authority := certtest.New(t, "authority")
	cert, key := authority.Issue("server")
	server := s.StartLeaseServer("127.0.0.1:0", "--provider", "memory:", "--tls-cert", cert, "--tls-key", key)
	roots := x509.NewCertPool()
	roots.AddCert(authority.Certificate())
	client := &http.Client{Timeout: await.Patience, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots}}}
	answer, err := client.Get("https://" + server.Address + "/metrics")
	must.Succeed(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	must.Succeed(t, err)
	m := regexp.MustCompile(`(?m)^kazahana_certificate_expiry_timestamp_seconds\{file="([^"]+)"\} (\S+)$`).FindStringSubmatch(string(text))
	if m == nil || m[1] != cert {
		t.Fatalf("no end of the certificate: %s", text)
	}
	// The authority's certificates end within an hour.
	seconds, err := strconv.ParseFloat(m[2], 64)
	if left := time.Until(time.Unix(int64(seconds), 0)); err != nil || left < 0 || left > time.Hour {
		t.Errorf("the certificate ends in %v (%v)", left, err)
	}
	if !strings.Contains(string(text), fmt.Sprintf("kazahana_certificate_lifetime_seconds{file=%q} 7200\n", cert)) {
		t.Errorf("the certificate is not valid for two hours: %s", text)
	}
	return readMetrics(t, string(text))
}

// TestMonitoring: what alerts and dashboard ask for is what a real daemon and a real
// lease server export.
func TestMonitoring(t *testing.T) {
	t.Parallel()
	daemon, server := provokedDaemon(t), provokedServer(t).with(certified(t))
	c := &queryCheck{exported: daemon.with(server), recorded: map[string][]string{}, used: map[string]bool{}}
	t.Run("alerts", func(t *testing.T) { c.alerts(t) })
	for title, path := range dashboards {
		t.Run(title, func(t *testing.T) { c.dashboard(t, path) })
	}
	for name := range c.types {
		// Seed 000-10.3-1.
		if strings.HasPrefix(name, "kazahana_") && !c.used[name] && !c.used[name+"_bucket"] && !c.used[name+"_sum"] {
			t.Errorf("no panel shows %s", name)
		}
	}
}

// queryCheck holds queries against the exported series. That they are valid PromQL, packaging's
// tests say.
type queryCheck struct {
	exported
	recorded map[string][]string // labels, by the name under which a rule records its result
	used     map[string]bool     // names of series in queries of the dashboard
}

var (
	queryMetric  = regexp.MustCompile(`\b(?:kazahana[_:]|process_|go_)\w+(?::\w+)*`)
	queryMatcher = regexp.MustCompile(`(\w+)(=~|!~|!=|=)"([^"$]*)"`)
	queryLabels  = regexp.MustCompile(`\b(?:by|without|on|ignoring|group_left|group_right) *\(([^)]*)\)`)
)

// check finds what a query asks for in vain, and returns the labels that its
// series have.
func (c *queryCheck) check(t *testing.T, where, expr string) (known []string) {
	t.Helper()
	known = []string{"job", "instance", "cluster", "alertname", "alertstate", "severity", "le"} // which Prometheus and its operator make
	values := map[string][]string{"le": nil}
	for _, name := range queryMetric.FindAllString(expr, -1) {
		c.used[name] = true
		if c.series[name] == nil && c.recorded[name] == nil {
			t.Errorf("%s: nothing exports %s: %s", where, name, expr)
		}
		for _, series := range c.series[name] {
			for label, value := range series {
				known = append(known, label)
				values[label] = append(values[label], value)
			}
		}
		known = append(known, c.recorded[name]...)
	}
	for _, m := range queryMatcher.FindAllStringSubmatch(expr, -1) {
		label, op, value := m[1], m[2], m[3]
		if !slices.Contains(known, label) {
			t.Errorf("%s: nothing has the label %s: %s", where, label, expr)
		}
		if strings.HasPrefix(op, "!") {
			continue // it need not be there
		}
		alternatives := []string{regexp.QuoteMeta(value)}
		if strings.HasSuffix(op, "~") {
			alternatives = strings.Split(value, "|")
		}
		for _, pattern := range alternatives {
			if values[label] != nil && !slices.ContainsFunc(values[label], regexp.MustCompile("^(?:"+pattern+")$").MatchString) {
				t.Errorf("%s: no series has %s=%q: %s", where, label, pattern, expr)
			}
		}
	}
	for _, m := range queryLabels.FindAllStringSubmatch(expr, -1) {
		for label := range strings.SplitSeq(m[1], ",") {
			if label = strings.TrimSpace(label); label != "" && !slices.Contains(known, label) {
				t.Errorf("%s: nothing has the label %s: %s", where, label, expr)
			}
		}
	}
	return known
}

func (c *queryCheck) alerts(t *testing.T) {
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert, Record, Expr string
				Labels, Annotations map[string]string
			}
		}
	}
	b, err := os.ReadFile(alertRules)
	must.Succeed(t, err)
	must.Succeed(t, yaml.Unmarshal(b, &file))
	templateQuery := regexp.MustCompile("query `([^`]*)`")
	template := regexp.MustCompile(`\$labels\.(\w+)`)
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			known := c.check(t, r.Alert+r.Record, r.Expr)
			if r.Record != "" {
				c.recorded[r.Record] = slices.AppendSeq(slices.Clone(known), maps.Keys(r.Labels))
			}
			for _, text := range r.Annotations {
				for _, m := range templateQuery.FindAllStringSubmatch(text, -1) {
					c.check(t, r.Alert+"'s description", m[1])
				}
				for _, m := range template.FindAllStringSubmatch(text, -1) {
					if !slices.Contains(known, m[1]) {
						t.Errorf("%s: its series have no label %s: %s", r.Alert, m[1], text)
					}
				}
			}
		}
	}
}

// dashboardModel is the checked part of a Grafana dashboard.
type dashboardModel struct {
	UID           string
	Title         string
	SchemaVersion int
	Panels        []dashboardPanel
	Templating    struct {
		List []struct {
			Name, Type string
			Query      any
		}
	}
	Annotations struct {
		List []struct{ Name, Expr string }
	}
}

type dashboardPanel struct {
	ID          int
	Type, Title string
	Datasource  *dashboardSource
	Targets     []dashboardTarget
}

type dashboardSource struct{ Type, UID string }

type dashboardTarget struct {
	RefID, Expr, LegendFormat string
	Datasource                *dashboardSource
}

func readDashboard(t *testing.T, path string) (d dashboardModel) {
	t.Helper()
	b, err := os.ReadFile(path)
	must.Succeed(t, err)
	must.Succeed(t, json.Unmarshal(b, &d))
	return d
}

var legendLabel = regexp.MustCompile(`\{\{(\w+)\}\}`)

func (c *queryCheck) dashboard(t *testing.T, path string) {
	d := readDashboard(t, path)
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			where := fmt.Sprintf("panel %q", p.Title)
			known := c.check(t, where, target.Expr)
			for _, m := range legendLabel.FindAllStringSubmatch(target.LegendFormat, -1) {
				if !slices.Contains(known, m[1]) {
					t.Errorf("%s: no label %s for the legend %s", where, m[1], target.LegendFormat)
				}
			}
		}
	}
	for _, a := range d.Annotations.List {
		c.check(t, "annotation "+a.Name, a.Expr)
	}
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		asked, _ := v.Query.(map[string]any)["query"].(string)
		m := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`).FindStringSubmatch(asked)
		if m == nil {
			t.Errorf("variable %s: %q", v.Name, asked)
			continue
		}
		if known := c.check(t, "variable "+v.Name, m[1]); !slices.Contains(known, m[2]) {
			t.Errorf("variable %s: nothing has the label %s", v.Name, m[2])
		}
	}
}

// The dashboards can be imported: they bring no data source of their maker's, every
// panel has its place, and every variable is used.
func TestDashboards(t *testing.T) {
	for title, path := range dashboards {
		t.Run(title, func(t *testing.T) { checkDashboard(t, title, path) })
	}
}

func checkDashboard(t *testing.T, title, path string) {
	d := readDashboard(t, path)
	if d.UID != strings.ReplaceAll(title, " ", "-") || d.Title != title || d.SchemaVersion < 36 {
		t.Errorf("uid %q, title %q, schema %d", d.UID, d.Title, d.SchemaVersion)
	}
	b, err := os.ReadFile(path)
	must.Succeed(t, err)
	for _, v := range d.Templating.List {
		if !strings.Contains(string(b), "$"+v.Name) && !strings.Contains(string(b), "${"+v.Name+"}") {
			t.Errorf("nothing uses the variable %s", v.Name)
		}
	}
	source := func(s *dashboardSource) bool { return s != nil && s.Type == "prometheus" && s.UID == "${datasource}" }
	ids, titles := map[int]bool{}, map[string]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.ID == 0 || p.Title == "" || titles[p.Title] && p.Type != "row" {
			t.Errorf("panel %d %q is there twice, or has no number or title", p.ID, p.Title)
		}
		ids[p.ID], titles[p.Title] = true, true
		if p.Type == "row" {
			continue
		}
		if !source(p.Datasource) || len(p.Targets) == 0 {
			t.Errorf("panel %q has the data source %v and %d queries", p.Title, p.Datasource, len(p.Targets))
		}
		for _, target := range p.Targets {
			if !source(target.Datasource) {
				t.Errorf("panel %q: query %s has the data source %v", p.Title, target.RefID, target.Datasource)
			}
		}
	}
}
