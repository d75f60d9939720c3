package httplease_test

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/record/memory"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// The counts are of the clients of lease servers and not of the servers, each once: at
// any server, in however many pools' names, and although servers are started anew.
func TestClientsOfServersAreCounted(t *testing.T) {
	kept := memory.New(nil)
	store := func() provider.Provider {
		p, err := providertest.OverMemory(kept, provider.Services{Default: provider.DefaultTerms()})
		must.Succeed(t, err)
		return p
	}
	start := func(address string) *front {
		t.Helper()
		l, err := net.Listen("tcp", address)
		must.Succeed(t, err)
		return serveOn(l, options(store(), provider.Services{Default: provider.DefaultTerms()}))
	}
	stop := func(f *front) {
		t.Helper()
		if err := f.close(); err != nil {
			t.Error(err)
		}
	}
	a, b := start(fmt.Sprintf("127.0.0.1:%d", ring.FreePort(t))), start("127.0.0.1:0") // a comes back
	clients := []provider.Provider{
		mustOpen(t, a.url+","+b.url), mustOpen(t, b.url+","+a.url), mustOpen(t, a.url), // three processes of one host, which say so
	}
	acquire := func() {
		t.Helper()
		for i, c := range clients {
			for _, service := range []string{"", "orders"} { // of one pool
				req := provider.AcquireRequest{Service: service, Meta: map[string]string{"host": "h", "pid": string(rune('a' + i))}}
				if _, err := c.Acquire(within(t, await.Patience), req); err != nil {
					t.Error(err)
				}
			}
		}
	}
	counted := func(want int64) {
		t.Helper()
		p := store()
		defer p.Close()
		counts, err := p.Counters(within(t, await.Patience), "")
		if err != nil || counts[provider.CountClients] != want {
			t.Errorf("client_id_count is %d (%v), want %d", counts[provider.CountClients], err, want)
		}
	}
	acquire()
	acquire()
	counted(3) // seed 001-9
	stop(b)    // its clients go to the other one
	acquire()
	counted(3)
	stop(a)
	a = start(strings.TrimPrefix(a.url, "http://")) // which remembers no client
	acquire()
	counted(3)

	// A program that follows the seed says nothing of that: it is told apart by its own word.
	for _, body := range []string{`{"meta":{"host":"h","pid":"x"}}`, `{"meta":{"host":"h","pid":"x"}}`, `{"meta":{"host":"h","pid":"y"}}`} {
		res, err := http.Post(a.url+"/lease", "application/json", strings.NewReader(body))
		must.Succeed(t, err)
		if _ = res.Body.Close(); res.StatusCode != 200 {
			t.Error(res.Status)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	counted(5)
	stop(a)
}
