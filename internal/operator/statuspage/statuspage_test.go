package statuspage

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/kazahana/kazahana/internal/testkit/await"
)

func TestMain(m *testing.M) { await.Main(m) }

func pages() map[string]http.Handler {
	return map[string]http.Handler{"daemon": Daemon(), "leaseserver": LeaseServer()}
}

func get(h http.Handler) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	return w
}

var (
	inlineScript = regexp.MustCompile(`(?s)<script type="module">(.*?)</script>`)
	inlineStyle  = regexp.MustCompile(`(?s)<style>(.*?)</style>`)
	address      = regexp.MustCompile(`(?:https?:)?//[a-z0-9.-]+`)
)

// A page needs nothing from elsewhere, and its policy allows nothing from there:
// just the script and the style that are in it.
func TestPagesAreSelfContained(t *testing.T) {
	for name, h := range pages() {
		w := get(h)
		html, policy := w.Body.String(), w.Header().Get("Content-Security-Policy")
		script, style := inlineScript.FindAllStringSubmatch(html, -1), inlineStyle.FindAllStringSubmatch(html, -1)
		if len(script) != 1 || len(style) != 1 || strings.Count(html, "<script") != 1 {
			t.Fatalf("%s: %d scripts and %d styles", name, len(script), len(style))
		}
		want := "default-src 'none'; script-src " + hash(script[0][1]) + "; style-src " + hash(style[0][1]) +
			"; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
		if policy != want {
			t.Errorf("%s: the policy is %s, want %s", name, policy, want)
		}
		for _, url := range address.FindAllString(html, -1) {
			if url != "http://www.w3.org" { // the name of SVG
				t.Errorf("%s names %s", name, url)
			}
		}
		for _, bad := range []string{"import ", "\nexport ", "innerHTML =", "insertAdjacentHTML", "document.write", "eval(", ` style="`, " onclick="} {
			if strings.Contains(html, bad) {
				t.Errorf("%s holds %q", name, bad)
			}
		}
		for header, value := range map[string]string{
			"Content-Type": "text/html; charset=utf-8", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff",
			"Referrer-Policy": "no-referrer", "Cross-Origin-Resource-Policy": "same-origin",
		} {
			if got := w.Header().Get(header); got != value {
				t.Errorf("%s: %s is %q", name, header, got)
			}
		}
		if w.Code != 200 || len(html) > 100_000 || !strings.Contains(html, "<noscript>") {
			t.Errorf("%s: status %d, %d bytes", name, w.Code, len(html))
		}
	}
}

// Warnings and errors are kept, and nothing below; equal ones are one, and there are never more
// than so many.
func TestRecent(t *testing.T) {
	core, written := observer.New(zapcore.ErrorLevel)
	r := &Recent{}
	log := r.Tee(zap.New(core)).With(zap.String("component", "keeper"))
	log.Info("all is well")
	log.Warn("the provider does not answer", zap.String("service", "a"), zap.Int("tries", 1))
	log.Error("a lease was lost", zap.Int64("machine_id", 7))
	log.Warn("the provider does not answer", zap.String("service", "a"), zap.Int("tries", 2))
	got := r.Events()
	if len(got) != 2 || written.Len() != 1 {
		t.Fatalf("%+v; the log itself has %d lines", got, written.Len())
	}
	if e := got[0]; e.Count != 2 || e.Level != "warn" || e.Component != "keeper" || e.Details != "service=a tries=2" || e.First > e.At || e.At == 0 {
		t.Errorf("%+v", e)
	}
	if e := got[1]; e.Count != 1 || e.Level != "error" || e.Message != "a lease was lost" || e.Details != "machine_id=7" {
		t.Errorf("%+v", e)
	}
	log.Warn(strings.Repeat("é", maxEventBytes), zap.String("x", strings.Repeat("y", 2*maxEventBytes)))
	if e := r.Events()[0]; len(e.Message) > maxEventBytes+len("…") || len(e.Details) > maxEventBytes+len("…") || strings.ContainsRune(e.Message, '\uFFFD') {
		t.Errorf("%d and %d bytes are kept", len(e.Message), len(e.Details))
	}
	for i := range 3 * maxEvents {
		log.Warn(fmt.Sprint("event ", i))
	}
	if got := r.Events(); len(got) != maxEvents || got[0].Message != fmt.Sprint("event ", 3*maxEvents-1) || got[maxEvents-1].Message != fmt.Sprint("event ", 2*maxEvents) {
		t.Errorf("%d events, from %q to %q", len(got), got[0].Message, got[len(got)-1].Message)
	}
}

// It is told while it is read.
func TestRecentIsShared(t *testing.T) {
	r := &Recent{}
	log := r.Tee(zap.NewNop())
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for range 500 {
				log.Warn(fmt.Sprint("event ", i))
				r.Events()
			}
		})
	}
	all.Wait()
	total := 0
	for _, e := range r.Events() {
		total += e.Count
	}
	if total != 2000 {
		t.Errorf("%d events were counted", total)
	}
}

func TestHistory(t *testing.T) {
	h := &History{}
	if past := h.Past(); len(past.Grew) != 0 || past.StepMS != 2000 {
		t.Errorf("%+v", past)
	}
	h.add(1000, map[string]uint64{"a": 100})
	h.add(3000, map[string]uint64{"a": 107})
	h.add(5000, map[string]uint64{"a": 107, "b": 3})
	past := h.Past()
	if fmt.Sprint(past.Grew) != "map[a:[7 0] b:[3]]" || past.EndMS != 5000 {
		t.Errorf("%+v", past)
	}
	past.Grew["a"][0] = 1 // the reader's own
	for i := range 2 * historySteps {
		h.add(int64(7000+2000*i), map[string]uint64{"a": 107 + uint64(i), "b": 3})
	}
	if past := h.Past(); len(past.Grew["a"]) != historySteps || past.Grew["a"][historySteps-1] != 1 || past.Grew["b"][0] != 0 {
		t.Errorf("%d steps are kept: %v", len(past.Grew["a"]), past.Grew)
	}
	// A counter that went back is no growth of 2^64.
	h.add(1_000_000, map[string]uint64{"a": 1, "b": 3})
	if past := h.Past(); past.Grew["a"][historySteps-1] != 0 {
		t.Errorf("%v", past.Grew["a"])
	}
}

func TestCounters(t *testing.T) {
	reg := prometheus.NewRegistry()
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kazahana_x_total"}, []string{"kind"})
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "kazahana_y_seconds", Buckets: []float64{1}})
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "go_z"})
	reg.MustRegister(c, h, g)
	c.WithLabelValues("a").Add(3)
	h.Observe(0.5)
	h.Observe(2)
	got, err := Counters(reg)
	if want := "map[kazahana_x_total:[{map[kind:a] 3}] kazahana_y_seconds_count:[{map[] 2}] kazahana_y_seconds_sum:[{map[] 2.5}]]"; err != nil || fmt.Sprint(got) != want {
		t.Errorf("%v, %v, want %s", got, err, want)
	}
}
