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
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// adminPort is an address at which the daemon's side door can be reached without Unix sockets.
func (s *site) adminPort() string {
	s.T.Helper()
	unix := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", s.Path("admin.sock"))
	}}
	proxy := httptest.NewServer(&httputil.ReverseProxy{
		Transport: unix, ErrorLog: log.New(io.Discard, "", 0),
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: "admin"}) },
	})
	s.T.Cleanup(proxy.Close)
	return proxy.Listener.Addr().String()
}

// prometheusPace is how long to wait before asking it again: it has more to do.
const prometheusPace = 100 * time.Millisecond

// prometheus is a server that was started.
type prometheus struct {
	*testkit.Instance
	url string
}

// startPrometheus runs a server that scrapes the targets, by job, every second,
// and goes by the alert rules, with their "for" cut to a second.
func (s *site) startPrometheus(targets map[string]string) *prometheus {
	s.T.Helper()
	tool := ring.Program(s.T, "prometheus")
	rules, err := os.ReadFile(alertRules)
	must.Succeed(s.T, err)
	testkit.WriteFile(s.T, s.Path("rules.yaml"), string(regexp.MustCompile(`(?m)^( +for:) .*$`).ReplaceAll(rules, []byte("$1 1s"))))
	config := "global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [rules.yaml]\nscrape_configs:\n"
	for job, target := range targets {
		config += fmt.Sprintf("  - {job_name: %s, static_configs: [{targets: ['%s']}]}\n", job, target)
	}
	testkit.WriteFile(s.T, s.Path("prometheus.yaml"), config)
	cmd := exec.Command(tool, "--config.file="+s.Path("prometheus.yaml"), "--storage.tsdb.path="+s.Path("tsdb"),
		"--web.listen-address=127.0.0.1:0", "--log.format=json")
	cmd.Env = s.Environment()
	p := &prometheus{Instance: s.LaunchCommand(cmd)}
	await.Eventually(s.T, "Prometheus listens", func() bool {
		select {
		case <-p.Ended:
			s.T.Fatalf("Prometheus ended: %v\n%s", p.Err, p.Log)
		default:
		}
		m := regexp.MustCompile(`"address":"(127\.0\.0\.1:[1-9]\d*)"`).FindStringSubmatch(p.Log.String())
		if m != nil {
			p.url = "http://" + m[1]
		}
		return m != nil
	})
	return p
}

// ask calls its API. It reports false while Prometheus is not ready.
func (p *prometheus) ask(path string, params url.Values, data any) bool {
	p.T.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: await.Patience}
	res, err := client.Get(p.url + path + "?" + params.Encode())
	must.Succeed(p.T, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	must.Succeed(p.T, err)
	if res.StatusCode == http.StatusServiceUnavailable {
		return false
	}
	var answer struct {
		Status, Error string
		Data          json.RawMessage
	}
	if err := json.Unmarshal(body, &answer); err != nil || answer.Status != "success" {
		p.T.Fatalf("%s %v: %s: %s", path, params, res.Status, body)
	}
	testkit.DecodeJSON(p.T, string(answer.Data), data)
	return true
}

// alert is a pending or firing one.
type alert struct {
	State       string
	Labels      map[string]string
	Annotations map[string]string
}

// firing are the alerts that fire, by name.
func (p *prometheus) firing() map[string]alert {
	p.T.Helper()
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
// of its provider, and that it is over. It accepts all rules and queries.
func TestPrometheus(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	server := s.StartLeaseServer("127.0.0.1:0", "--provider", "memory:")
	s.Start(s.Brief("--admin-listen", "unix:"+s.Path("admin.sock"))...)
	c := s.Dial()
	c.Lease()
	p := s.startPrometheus(map[string]string{"kazahana": s.adminPort(), "kazahana-lease-server": server.Address})
	awaitScrape(p)

	mend := s.moveAway()
	c.AwaitMode(testkit.FallbackModes...)
	got := p.firing()["KazahanaFallbackActive"]
	await.Eventually(t, "the alert fires", func() bool {
		got = p.firing()["KazahanaFallbackActive"]
		return got.Labels != nil
	})
	if got.Labels["job"] != "kazahana" || got.Labels["severity"] != "ticket" || got.Labels["instance"] != "" ||
		got.Annotations["summary"] != "1 hosts have no lease" || !strings.Contains(got.Annotations["description"], "For example 127.0.0.1:") {
		t.Errorf("the alert is %+v", got)
	}
	checkRulesHealth(p)
	p.acceptsTheDashboards()
	mend()
	c.AwaitMode("regular")
	await.Eventually(t, "the alert is over", func() bool { _, fires := p.firing()["KazahanaFallbackActive"]; return !fires })
}

// awaitScrape waits until both jobs have been scraped and no lease is missed.
func awaitScrape(p *prometheus) {
	await.Eventually(p.T, "both are scraped, and nothing is wrong", func() bool {
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
	await.Eventually(p.T, "all rules have been evaluated", func() bool {
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
					p.T.Fatalf("%s: %s", r.Name, r.LastError)
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
		p.T.Errorf("only %d rules", n)
	}
}

// acceptsTheDashboards has Prometheus evaluate every query of the dashboards.
func (p *prometheus) acceptsTheDashboards() {
	variables := strings.NewReplacer("$__rate_interval", "5m", "$__interval", "15s")
	var result any
	for _, path := range dashboards {
		d := readDashboard(p.T, path)
		for _, panel := range d.Panels {
			for _, target := range panel.Targets {
				p.ask("/api/v1/query", url.Values{"query": {variables.Replace(target.Expr)}}, &result)
			}
		}
		for _, a := range d.Annotations.List {
			p.ask("/api/v1/query", url.Values{"query": {variables.Replace(a.Expr)}}, &result)
		}
	}
}
