package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/conn/kubeconn"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/testkit/kubetest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/proxytest"
)

// withoutVerb are the shipped Role's verbs but one.
func withoutVerb(t *testing.T, missing string) []string {
	return slices.DeleteFunc(kubetest.Verbs(t), func(v string) bool { return v == missing })
}

// What the Role lacks is in the error, for each verb; and each verb that it has is needed.
func TestMissingRules(t *testing.T) {
	for _, missing := range kubetest.Verbs(t) {
		r := newRig(t)
		l := r.one(r.open(only(0, 1))) // the pool is there
		r.Allow("daemon", withoutVerb(t, missing)...)
		p := r.open(only(0, 1))
		var err error
		switch missing {
		case "get", "update":
			err = p.Release(ctx(t), providertest.SignedRelease(l, l.Created))
		case "create":
			_, err = p.Acquire(ctx(t), provider.AcquireRequest{})
		case "list":
			_, err = p.List(ctx(t), "")
		}
		for what, err := range map[string]error{"the operation": err, "the review": p.api.CheckRights(ctx(t))} {
			if rule := fmt.Sprintf("verbs: [%q]", missing); err == nil || !strings.Contains(err.Error(), rule) {
				t.Errorf("without %s, %s says %v", missing, what, err)
			}
		}
	}
	must.Succeed(t, newRig(t).open(only(0, 1)).api.CheckRights(ctx(t)))
}

// A token that rotates is read again, and the call that was refused with the old one is
// repeated.
func TestATokenRotates(t *testing.T) {
	r := newRig(t)
	token := filepath.Join(t.TempDir(), "token")
	must.Succeed(t, os.WriteFile(token, []byte("first"), 0o600))
	r.Allow("first", kubetest.Verbs(t)...)
	text, err := os.ReadFile(r.config)
	must.Succeed(t, err)
	must.Succeed(t, os.WriteFile(r.config, []byte(strings.Replace(string(text), `token: "daemon"`, fmt.Sprintf("tokenFile: %q", token), 1)), 0o600))
	p := r.open(only(0, 7))
	r.one(p)
	r.Revoke("first")
	r.Allow("second", kubetest.Verbs(t)...)
	must.Succeed(t, os.WriteFile(token, []byte("second"), 0o600))
	r.one(p)
	r.Revoke("second")
	var status *kubeconn.StatusError
	if _, err := p.Acquire(ctx(t), provider.AcquireRequest{}); !errors.As(err, &status) || status.Status != http.StatusUnauthorized {
		t.Errorf("with a revoked token: %v", err)
	}
}

// A server that asks for patience gets it: nothing is sent before.
func TestRetryAfter(t *testing.T) {
	r := newRig(t)
	p := r.open(only(0, 7))
	l := r.one(p)
	var asked atomic.Int64
	r.Fault(func(w http.ResponseWriter, _ *http.Request) bool {
		asked.Add(1)
		kubetest.Throttle(w, 300)
		return true
	})
	for i := range 3 {
		_, err := p.Acquire(ctx(t), provider.AcquireRequest{})
		busy, ok := errors.AsType[*provider.BusyError](err)
		if !ok || busy.RetryAfter <= 0 || busy.RetryAfter > 300*time.Second || i == 0 && busy.RetryAfter < 300*time.Second {
			t.Fatalf("acquire %d: %v", i, err)
		}
	}
	err := p.Release(ctx(t), providertest.SignedRelease(l, l.Created))
	if _, busy := errors.AsType[*provider.BusyError](err); !busy || !errors.Is(err, provider.ErrNotSent) {
		t.Errorf("a release: %v", err)
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("%d requests were sent", n)
	}
}

// An answer that asks for patience after a write that may be carried out is no refusal.
func TestRetryAfterAWrite(t *testing.T) {
	for _, status := range []int{http.StatusInternalServerError, http.StatusServiceUnavailable, http.StatusGatewayTimeout} {
		for name, try := range map[string]func(*Provider, lease.Lease) error{
			"acquire": func(p *Provider, _ lease.Lease) error {
				_, err := p.Acquire(ctx(t), provider.AcquireRequest{RequestID: provider.NewSecret()})
				return err
			},
			"release": func(p *Provider, l lease.Lease) error {
				return p.Release(ctx(t), providertest.SignedRelease(l, l.Created))
			},
			"extend": func(p *Provider, l lease.Lease) error {
				_, err := provider.Extend(ctx(t), p, "", l)
				return err
			},
		} {
			r := newRig(t)
			p := r.open(only(0, 7))
			l := r.one(p)
			r.clock.Add(1000)
			var written atomic.Bool
			r.Fault(func(w http.ResponseWriter, q *http.Request) bool {
				if q.Method != http.MethodGet {
					r.Serve(httptest.NewRecorder(), q)
					written.Store(true)
				}
				if written.Load() {
					w.Header().Set("Retry-After", "1")
					w.WriteHeader(status)
				}
				return written.Load()
			})
			err := try(p, l)
			if _, busy := errors.AsType[*provider.BusyError](err); busy || err == nil || errors.Is(err, provider.ErrNotSent) {
				t.Errorf("%s, answered with %d: %v", name, status, err)
			}
		}
	}
}

// The server's clock counts; where the host's is far from it, nothing is granted.
func TestClocks(t *testing.T) {
	r := newRig(t)
	p := r.open(only(0, 7))
	for _, off := range []time.Duration{0, 5 * time.Second, -5 * time.Second, 9 * time.Minute, -9 * time.Minute} {
		r.offset.Store(off.Milliseconds())
		r.clock.Add(3 * recently)
		l := r.one(p)
		// The server says its time in whole seconds.
		if away := l.Created - r.clock.Load(); max(away, -away) > 1000 {
			t.Errorf("with the host's clock %v ahead, the lease begins %d ms after the server's time", off, away)
		}
		must.Succeed(t, p.Release(ctx(t), providertest.SignedRelease(l, l.Created)))
	}
	for _, off := range []time.Duration{11 * time.Minute, -11 * time.Minute} {
		r.offset.Store(off.Milliseconds())
		r.clock.Add(3 * recently)
		if leases, err := p.Acquire(ctx(t), provider.AcquireRequest{}); err == nil || !strings.Contains(err.Error(), "clock") {
			t.Errorf("with the host's clock %v ahead: %v, %v", off, leases, err)
		}
	}
}

// A request with a lost answer finds its grant in the memory of this process, and another
// process finds it by its label.
func TestARepeatedRequest(t *testing.T) {
	r := newRig(t)
	p := r.open(only(0, 99))
	for i, client := range []provider.Client{provider.OwnClient, provider.KnownClient} {
		req := provider.AcquireRequest{RequestID: fmt.Sprint(i), ThroughputPerMS: 700, Client: client}
		lost, cancel := context.WithCancel(context.Background())
		var writes atomic.Int64
		r.Fault(func(_ http.ResponseWriter, q *http.Request) bool {
			if q.Method == http.MethodPost && writes.Add(1) == 3 {
				cancel() // two leases are written
			}
			return false
		})
		if leases, err := p.Acquire(lost, req); err == nil {
			t.Fatalf("the call that was given up returned %v", leases)
		}
		cancel()
		r.Fault(nil)
		first, err := p.Acquire(ctx(t), req)
		must.Succeed(t, err)
		other := p
		if client != provider.OwnClient {
			other = r.open(only(0, 99))
		}
		again, err := other.Acquire(ctx(t), req)
		if err != nil || !slices.Equal(again, first) {
			t.Errorf("repeated: %v, %v, want %v", again, err, first)
		}
		living := 0
		for id := range int64(100) {
			if s := r.slot(id); s.End != never && s.Request == requestLabel("", req.RequestID) {
				living++
			}
		}
		if living > 3 || len(first) > living {
			t.Errorf("%d leases were granted for a request that needs 3, and %d returned", living, len(first))
		}
	}
}

// A release on a bad network is sent once, and the error says whether it may have been.
func TestReleaseOnABadNetwork(t *testing.T) {
	r := newRig(t)
	r.clock.Store(time.Now().UnixMilli())
	r.Allow("", kubetest.Verbs(t)...) // without TLS no token is sent
	proxy := proxytest.New(t, "tcp", r.Plain())
	open := func(address string) (provider.Provider, error) {
		cfg := Config{Services: provider.Services{Default: provider.DefaultTerms()}}
		cfg.Kubeconfig = kubetest.WriteKubeconfig(t, kubetest.KubeconfigText("http://"+address, "", kubetest.Namespace, nil))
		return opened(cfg)
	}
	near, err := open(r.Plain())
	must.Succeed(t, err)
	t.Cleanup(func() { near.Close() })
	providertest.RunRemote(t, providertest.Remote{
		Proxy: proxy, Near: near,
		Open:    func() (provider.Provider, error) { return open(proxy.Addr()) },
		Sending: func(p provider.Provider, f func()) { p.(*Provider).releasing = f },
		Mark:    `PUT /apis/coordination.k8s.io`, LooksUp: true,
	})
}

func TestParseURL(t *testing.T) {
	for raw, wantErr := range map[string]string{
		"kubernetes:":                                       "",
		"kubernetes:apps":                                   "",
		"kubernetes:apps?pool=orders&term=5m":               "",
		"kubernetes:apps?kubeconfig=/home/a/.kube/config":   "",
		"kubernetes:?context=prod":                          "",
		"kubernetes://apps":                                 "no namespace",
		"kubernetes:Apps":                                   "no namespace",
		"kubernetes:apps?kubeconfig=config":                 "absolute path",
		"kubernetes:apps?pool=Orders":                       "lower-case",
		"kubernetes:apps?pool=a.b":                          "lower-case",
		"kubernetes:apps?prefix=x":                          `"prefix"`,
		"kubernetes:apps?ids=0-99999999":                    "ids=0-99999999",
		"kubernetes:apps?kubeconfig=/a&kubeconfig=/b":       "2 times",
		"kubernetes:apps?pool=orders&bit_seq=9&ids=100-200": "",
	} {
		_, err := ParseURL(raw, func(t provider.Terms) provider.Services { return provider.Services{Default: t} }, nil)
		if wantErr == "" && err != nil || wantErr != "" && (err == nil || !strings.Contains(err.Error(), wantErr)) {
			t.Errorf("%s: the error is %v, want one with %q", raw, err, wantErr)
		}
	}
	coarse := func(t provider.Terms) provider.Services {
		return provider.Services{Default: t, Named: map[string]provider.Terms{"coarse": provider.DefaultTerms().WithBitSeq(9)}}
	}
	if _, err := ParseURL("kubernetes:", coarse, nil); err == nil || !strings.Contains(err.Error(), "one layout") {
		t.Errorf("two layouts in one pool: %v", err)
	}
}
