package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// adminPort is an address at which the daemon's side door can be reached by those
// who know no Unix sockets.
func (s *site) adminPort() string {
	s.t.Helper()
	unix := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", s.path("admin.sock"))
	}}
	proxy := httptest.NewServer(&httputil.ReverseProxy{
		Transport: unix, ErrorLog: log.New(io.Discard, "", 0),
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: "admin"}) },
	})
	s.t.Cleanup(proxy.Close)
	return proxy.Listener.Addr().String()
}

// prometheusPace is how long to wait before asking it again: it has more to do.
const prometheusPace = 100 * time.Millisecond

// prometheus is a server that was started.
type prometheus struct {
	*instance
	url string
}

// startPrometheus runs a server that scrapes the targets, by job, every second,
// and goes by the alert rules, whose "for" it cuts to a second.
func (s *site) startPrometheus(targets map[string]string) *prometheus {
	s.t.Helper()
	tool, err := exec.LookPath("prometheus")
	if err != nil {
		if tool, err = filepath.Abs("../../.tools/prometheus/prometheus"); err != nil {
			s.t.Fatal(err)
		}
		if _, err := os.Stat(tool); err != nil {
			s.t.Skip("prometheus is not installed: make setup unpacks Debian's")
		}
	}
	rules, err := os.ReadFile(alertRules)
	if err != nil {
		s.t.Fatal(err)
	}
	writeFile(s.t, s.path("rules.yaml"), string(regexp.MustCompile(`(?m)^( +for:) .*$`).ReplaceAll(rules, []byte("$1 1s"))))
	config := "global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [rules.yaml]\nscrape_configs:\n"
	for job, target := range targets {
		config += fmt.Sprintf("  - {job_name: %s, static_configs: [{targets: ['%s']}]}\n", job, target)
	}
	writeFile(s.t, s.path("prometheus.yaml"), config)
	cmd := exec.Command(tool, "--config.file="+s.path("prometheus.yaml"), "--storage.tsdb.path="+s.path("tsdb"),
		"--web.listen-address=127.0.0.1:0", "--log.format=json")
	cmd.Env = s.environment()
	p := &prometheus{instance: s.launchCommand(cmd)}
	eventually(s.t, "Prometheus listens", func() bool {
		select {
		case <-p.ended:
			s.t.Fatalf("Prometheus ended: %v\n%s", p.err, p.log)
		default:
		}
		m := regexp.MustCompile(`"address":"(127\.0\.0\.1:[1-9]\d*)"`).FindStringSubmatch(p.log.String())
		if m != nil {
			p.url = "http://" + m[1]
		}
		return m != nil
	})
	return p
}

// ask calls its API. It reports false while Prometheus is not ready.
func (p *prometheus) ask(path string, params url.Values, data any) bool {
	p.t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	res, err := client.Get(p.url + path + "?" + params.Encode())
	if err != nil {
		p.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	if res.StatusCode == http.StatusServiceUnavailable {
		return false
	}
	var answer struct {
		Status, Error string
		Data          json.RawMessage
	}
	if err := json.Unmarshal(body, &answer); err != nil || answer.Status != "success" {
		p.t.Fatalf("%s %v: %s: %s", path, params, res.Status, body)
	}
	decodeJSON(p.t, string(answer.Data), data)
	return true
}

// alert is one that is pending or firing.
type alert struct {
	State       string
	Labels      map[string]string
	Annotations map[string]string
}

// firing are the alerts that fire, by name.
func (p *prometheus) firing() map[string]alert {
	p.t.Helper()
	time.Sleep(prometheusPace)
	var all struct{ Alerts []alert }
	p.ask("/api/v1/alerts", nil, &all)
	fire := map[string]alert{}
	for _, a := range all.Alerts {
		if a.State == "firing" {
			fire[a.Labels["alertname"]] = a
		}
	}
	return fire
}

// TestPrometheus: a real Prometheus that scrapes a real daemon tells of an outage
// of its provider, and that it is over. It accepts all rules and queries, and reads
// them as the other tests do.
func TestPrometheus(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	server := s.startLeaseServer("127.0.0.1:0", "--provider", "memory:")
	s.start(s.brief("--admin-listen", "unix:"+s.path("admin.sock"))...)
	c := s.dial()
	c.lease()
	p := s.startPrometheus(map[string]string{"kazahana": s.adminPort(), "kazahana-lease-server": server.address})
	awaitScrape(p)

	mend := outages["moved away"](t, s)
	c.awaitMode(fallbackModes...)
	eventually(t, "the alert fires", func() bool { return p.firing()["KazahanaFallbackActive"].Labels != nil })
	got := p.firing()["KazahanaFallbackActive"]
	if got.Labels["service"] != "default" || got.Labels["job"] != "kazahana" || got.Labels["severity"] != "warning" ||
		!strings.HasPrefix(got.Annotations["summary"], "Service default on 127.0.0.1:") {
		t.Errorf("the alert is %+v", got)
	}
	checkRulesHealth(p)
	checkCanonical(p)
	mend()
	c.awaitMode("regular")
	eventually(t, "the alert is over", func() bool { _, fires := p.firing()["KazahanaFallbackActive"]; return !fires })
}

// awaitScrape waits until both jobs have been scraped and no lease is missed.
func awaitScrape(p *prometheus) {
	eventually(p.t, "both are scraped, and nothing is wrong", func() bool {
		time.Sleep(prometheusPace)
		var up struct{ Result []any }
		if !p.ask("/api/v1/query", url.Values{"query": {`up == 1 unless on (job) kazahana_fallback_active == 1`}}, &up) {
			return false
		}
		_, fires := p.firing()["KazahanaFallbackActive"]
		return len(up.Result) == 2 && !fires
	})
}

// checkRulesHealth: the evaluation of every rule has worked on real series.
func checkRulesHealth(p *prometheus) {
	n := 0
	eventually(p.t, "all rules have been evaluated", func() bool {
		time.Sleep(prometheusPace)
		var all struct {
			Groups []struct {
				Rules []struct{ Name, Health, LastError string }
			}
		}
		p.ask("/api/v1/rules", nil, &all)
		n = 0
		for _, g := range all.Groups {
			for _, r := range g.Rules {
				if r.Health == "err" {
					p.t.Fatalf("%s: %s", r.Name, r.LastError)
				}
				if r.Health == "unknown" {
					return false
				}
				n++
			}
		}
		return true
	})
	if n < 20 {
		p.t.Errorf("only %d rules", n)
	}
}

// checkCanonical: Prometheus' own parser accepts every query, and what it makes
// of it is read by readQuery like the query itself.
func checkCanonical(p *prometheus) {
	variables := strings.NewReplacer("$__rate_interval", "5m", "$__interval", "15s")
	for where, expr := range allQueries(p.t) {
		expr = variables.Replace(expr)
		var canonical string
		p.ask("/api/v1/format_query", url.Values{"query": {expr}}, &canonical)
		a, errA := readQuery(expr)
		b, errB := readQuery(canonical)
		text := func(q query) (all []string) {
			for _, s := range q.selectors {
				all = append(all, s.String())
			}
			slices.Sort(all)
			return all
		}
		if errA != nil || errB != nil || !slices.Equal(text(a), text(b)) {
			p.t.Errorf("%s: %s asks for %v (%v); Prometheus reads it as %s, which asks for %v (%v)", where, expr, text(a), errA, canonical, text(b), errB)
		}
		var result any
		p.ask("/api/v1/query", url.Values{"query": {expr}}, &result)
	}
}

// allQueries are those of the alerts and of the dashboard, by where they are.
func allQueries(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	var file struct {
		Groups []struct {
			Rules []struct{ Alert, Record, Expr string }
		}
	}
	b, err := os.ReadFile(alertRules)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(b, &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		for i, r := range g.Rules {
			all[fmt.Sprintf("rule %d %s", i, r.Alert+r.Record)] = r.Expr
		}
	}
	d := readDashboard(t)
	for _, panel := range d.Panels {
		for _, target := range panel.Targets {
			all[fmt.Sprintf("panel %d %s", panel.ID, target.RefID)] = target.Expr
		}
	}
	for _, a := range d.Annotations.List {
		all["annotation "+a.Name] = a.Expr
	}
	return all
}
