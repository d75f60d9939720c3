package admin

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// gathering is a collector with a long answer that notes how many ask for it at once.
type gathering struct{ now, most atomic.Int64 }

func (*gathering) Describe(chan<- *prometheus.Desc) {}

func (g *gathering) Collect(out chan<- prometheus.Metric) {
	g.most.Store(max(g.most.Load(), g.now.Add(1)))
	defer g.now.Add(-1)
	text := string(make([]byte, 8<<20))
	out <- prometheus.MustNewConstMetric(prometheus.NewDesc("large", text, nil, nil), prometheus.GaugeValue, 1)
}

// However many ask for metrics or for the page's data, they are made for one at a time; and a
// peer that does not read them keeps no other waiting.
func TestAnswersAreMadeOneAtATime(t *testing.T) {
	for _, path := range []string{"/metrics", StatusPath} {
		t.Run(path, func(t *testing.T) { oneAnswerAtATime(t, path) })
	}
}

func oneAnswerAtATime(t *testing.T, path string) {
	all, g := prometheus.NewRegistry(), &gathering{}
	all.MustRegister(g)
	server := httptest.NewServer(Handler(Options{Registry: all, Status: func() any {
		_, _ = all.Gather()
		return string(make([]byte, 8<<20))
	}}))
	defer server.Close()
	for range 4 {
		c, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
	}
	var asking sync.WaitGroup
	for range 8 {
		asking.Go(func() {
			r, err := http.Get(server.URL + path)
			if err != nil {
				t.Error(err)
				return
			}
			defer r.Body.Close()
			if n, err := io.Copy(io.Discard, r.Body); err != nil || n < 8<<20 {
				t.Errorf("%d bytes, %v", n, err)
			}
		})
	}
	asking.Wait()
	if n := g.most.Load(); n != 1 {
		t.Errorf("%d at once", n)
	}
}
