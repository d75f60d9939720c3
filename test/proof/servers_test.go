package proof

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"time"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/conn/httpconn"
	"github.com/kazahana/kazahana/internal/leaseserver"
	"github.com/kazahana/kazahana/internal/operator/metrics"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/httplease"
)

// servers are two lease servers before one provider, and the network to them: the
// product's server and its client, with requests that are handed over in place of a
// connection.
type servers struct {
	w       *world
	options leaseserver.Options
	running map[string]http.Handler // by host
}

// serve has the daemons lease from lease servers.
func (w *world) serve(p provider.Provider, services provider.Services, nowMS func() int64) {
	s := &servers{w: w, running: map[string]http.Handler{}, options: leaseserver.Options{
		Provider: p, Services: services, Version: "simulated", ProviderTimeout: time.Second, MaxInFlight: 100,
		NowMS: nowMS, Log: zap.NewNop(),
	}}
	cfg, err := httpconn.ParseURL("http://one.example,http://two.example")
	must(err, nil)
	cfg.Transport = s
	for _, server := range cfg.Servers {
		s.running[server.Host] = nil
	}
	s.restart()
	w.provider, err = httplease.New(cfg)
	must(err, nil)
	w.servers = s
}

// restart begins the servers anew: they forget all that is not in the store.
func (s *servers) restart() {
	for host := range s.running {
		o := s.options
		o.Metrics = metrics.NewLeaseServer(metrics.Build{})
		s.running[host] = leaseserver.New(o)
	}
}

// errNoConnection is a transport's: that nothing was sent is for the client to find out.
var errNoConnection = errors.New("connection refused")

// RoundTrip implements http.RoundTripper. Connections fail before and after a server has
// carried a request out, and a proxy may send one again, if that is not a DELETE.
func (s *servers) RoundTrip(r *http.Request) (*http.Response, error) {
	w := s.w
	if w.rnd.IntN(20) == 0 {
		w.count("lease servers out of reach")
		return nil, errNoConnection
	}
	if trace := httptrace.ContextClientTrace(r.Context()); trace != nil && trace.GotConn != nil {
		trace.GotConn(httptrace.GotConnInfo{})
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	switch w.rnd.IntN(40) {
	case 0:
		w.count("requests to lease servers lost")
		return nil, errLost
	case 1:
		w.count("answers of lease servers lost")
		s.handle(r, body)
		return nil, errLost
	case 2, 3:
		if r.Method != http.MethodDelete {
			w.count("requests to lease servers repeated")
			s.handle(r, body)
		}
	}
	return s.handle(r, body), nil
}

// handle has a server carry a request out.
func (s *servers) handle(r *http.Request, body []byte) *http.Response {
	answer := httptest.NewRecorder()
	request := httptest.NewRequestWithContext(r.Context(), r.Method, r.URL.String(), bytes.NewReader(body))
	request.Header = r.Header.Clone()
	s.running[r.URL.Host].ServeHTTP(answer, request)
	s.w.count("requests to lease servers")
	s.w.tells("%s %s: %d", r.Method, r.URL.Path, answer.Code)
	return answer.Result()
}
