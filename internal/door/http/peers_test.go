package http

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/daemon"
	"github.com/kazahana/kazahana/internal/door/doortest"
	"github.com/kazahana/kazahana/internal/issuer"
	"github.com/kazahana/kazahana/internal/operator/metrics"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/idletest"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// waits has a request of a peer wait for the next millisecond.
func waits(t *testing.T, tcp bool) (*doortest.Rig, *clock.Fake, net.Conn) {
	fake := clock.NewFake(snowflake.DefaultEpochMS + 1000)
	r := start(t, doortest.Options{Clock: fake, TCP: tcp})
	fetch(t, client(t, r), "GET", fmt.Sprintf("/ids?n=%d", 1<<snowflake.DefaultBitSeq))
	nc := r.Dial(t)
	fmt.Fprint(nc, "GET /id?timeout_ms=3600000 HTTP/1.1\r\nHost: localhost\r\n\r\n")
	await.Eventually(t, "it waits", func() bool { return r.Server.Status().InFlight == 1 })
	return r, fake, nc
}

// halfClose ends what the peer sends, and returns once the library has noticed.
func halfClose(t *testing.T, nc net.Conn) {
	t.Helper()
	listens := func() bool { return strings.Contains(await.Stacks(), "backgroundRead") }
	await.Eventually(t, "the library listens while the request waits", listens)
	must.Succeed(t, nc.(interface{ CloseWrite() error }).CloseWrite())
	await.Eventually(t, "the library has noticed", func() bool { return !listens() })
}

// TestHalfClosed: a peer that sends no more while its request waits gets the answer.
func TestHalfClosed(t *testing.T) {
	_, fake, nc := waits(t, false)
	halfClose(t, nc)
	fake.Advance(time.Millisecond)
	response, err := http.ReadResponse(bufio.NewReader(nc), nil)
	must.Succeed(t, err)
	body, err := io.ReadAll(response.Body)
	must.Succeed(t, err)
	if response.StatusCode != 200 || !regexp.MustCompile(`^\d+$`).Match(body) {
		t.Errorf("%s %q", response.Status, body)
	}
}

// TestHalfClosedAndGone: the wait of a peer that sent no more ends when it is gone.
func TestHalfClosedAndGone(t *testing.T) {
	r, _, nc := waits(t, false)
	halfClose(t, nc)
	_ = nc.Close()
	await.Eventually(t, "its place is free", func() bool { return r.Server.Status().InFlight == 0 })
}

// TestHalfClosedOverTCP: a peer that sends no more counts as gone, which it mostly is. It gets no answer,
// rather than an empty one.
func TestHalfClosedOverTCP(t *testing.T) {
	r, _, nc := waits(t, true)
	halfClose(t, nc)
	await.Eventually(t, "its place is free", func() bool { return r.Server.Status().InFlight == 0 })
	if got, err := io.ReadAll(nc); len(got) > 0 || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// pipes is a listener without the kernel, so that a bubble's time passes while a peer waits.
type pipes struct {
	dialed chan net.Conn
	closed chan struct{}
}

func newPipes() *pipes { return &pipes{make(chan net.Conn), make(chan struct{})} }

func (l *pipes) Accept() (net.Conn, error) {
	select {
	case nc := <-l.dialed:
		return nc, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipes) Close() error   { close(l.closed); return nil }
func (l *pipes) Addr() net.Addr { return &net.UnixAddr{Net: "unix", Name: "door"} }

// TestAnswersThatNobodyReads: a peer that does not read an answer is cut off. That holds for all
// answers, also for the library's own.
func TestAnswersThatNobodyReads(t *testing.T) {
	for _, request := range []string{
		"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST /id HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /services/nothing/id HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET //id HTTP/1.1\r\nHost: x\r\n\r\n", // which the library answers, as the next one
		"GET /id HTTP/1.1\r\nHost : x\r\n\r\n",
	} {
		t.Run(request[:len("GET /nothing")], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { neverReads(t, request) })
		})
	}
}

// bubbled is a door of a server that runs nothing in the background.
func bubbled(t *testing.T, connections int) *daemon.Door {
	limits := daemon.Limits{MaxConnections: connections, MaxConnectionsPerUser: connections, DrainTimeout: doortest.Patience}
	services := map[string]*issuer.Service{"default": {}}
	s, err := daemon.NewServer(daemon.Config{Limits: limits, DefaultService: "default"}, services, metrics.New(metrics.Build{}), zap.NewNop())
	must.Succeed(t, err)
	return s.NewDoor("http", Refusal)
}

// TestIdleConnectionsEnd: connections that do nothing keep their places for a moment only.
func TestIdleConnectionsEnd(t *testing.T) {
	idletest.Test(t, func(t *testing.T, ctx context.Context, l net.Listener) error {
		return Serve(ctx, l, bubbled(t, 1000), "", zap.NewNop())
	})
}

// neverReads sends a request, and expects the end of the connection.
func neverReads(t *testing.T, request string) {
	l, d, served := newPipes(), bubbled(t, 10), make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		defer close(served)
		_ = Serve(ctx, l, d, "", zap.NewNop())
	}()
	defer func() { stop(); <-served }()
	near, far := net.Pipe()
	defer near.Close()
	l.dialed <- far
	// The first answer's time says nothing about the second one.
	fmt.Fprint(near, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	in := bufio.NewReader(near)
	response, err := http.ReadResponse(in, nil)
	must.Succeed(t, err)
	_, err = io.Copy(io.Discard, response.Body)
	must.Succeed(t, err)
	fmt.Fprint(near, request)
	_, patience := d.Patience()
	time.Sleep(patience + time.Second)
	if response, err := http.ReadResponse(in, nil); err == nil {
		t.Errorf("%q: the answer %d still waits", request, response.StatusCode)
	}
}

// TestAnAnswerHasOneDeadline: a peer gains no time by reading a piece now and then, and the next answer has
// a deadline of its own.
func TestAnAnswerHasOneDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipes()
		near, far := net.Pipe()
		defer near.Close()
		go func() { l.dialed <- far }()
		nc, err := entrance{bubbled(t, 10).Listener(l)}.Accept()
		must.Succeed(t, err)
		defer nc.Close()
		c := nc.(*connection)
		c.patience = doortest.Patience
		go func() { _, _ = io.Copy(io.Discard, near) }()
		for range 2 {
			_, first := c.Write([]byte("x"))
			time.Sleep(2 * c.patience)
			_, second := c.Write([]byte("x"))
			if first != nil || !errors.Is(second, os.ErrDeadlineExceeded) {
				t.Errorf("a piece in time: %v, and one too late: %v", first, second)
			}
			must.Succeed(t, c.SetWriteDeadline(time.Time{})) // as the library does
		}
	})
}
