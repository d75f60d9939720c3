package guard

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kazahana/kazahana/internal/testkit/certtest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/threads"
)

// A thread that works at a handshake is behind those that have just waited. Afterwards it is
// as others.
func TestHandshakesLetOthersFirst(t *testing.T) {
	slice := func() uint64 {
		attr, err := unix.SchedGetAttr(0, 0)
		must.Succeed(t, err)
		if attr.Policy != unix.SCHED_NORMAL {
			return 0
		}
		return attr.Runtime
	}
	if slice() == 0 {
		t.Skip("Linux before 6.12, or a policy without slices of a chosen length")
	}
	before, during := slice(), uint64(0)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	g := New(Limits{Connections: 100, Unproven: long}, func(Reason, string) {})
	server := &http.Server{
		TLSConfig: &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			during = slice()
			return nil, nil
		}},
		Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			if n := slice(); n != before {
				t.Errorf("a request has slices of %d ns, and %d are usual", n, before)
			}
		}),
	}
	g.Protect(server)
	cert, key := certtest.New(t, "authority").Issue("server")
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.ServeTLS(g.Listener(l), cert, key)
	}()
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	answer, err := client.Get("https://" + l.Addr().String())
	must.Succeed(t, err)
	_, err = io.Copy(io.Discard, answer.Body)
	must.Succeed(t, err)
	_ = answer.Body.Close()
	if during != uint64(threads.Long) {
		t.Errorf("a handshake has slices of %d ns", during)
	}
	must.Succeed(t, server.Close())
	<-served
}
