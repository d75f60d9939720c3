package http

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/door/doortest"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit/await"
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
	must.Succeed(t, nc.(interface{ CloseWrite() error }).CloseWrite())
	await.Eventually(t, "the library has noticed", func() bool { return !strings.Contains(await.Stacks(), "backgroundRead") })
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
