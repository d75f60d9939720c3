//go:build linux

package abuse

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/kazahana/kazahana/internal/wire"
)

const (
	heldLock = "innocent"
	lockTerm = 5 * time.Minute
	// callLimit is how long one call may take before the innocent is not served. It is
	// long beside what a slow machine needs.
	callLimit = time.Minute
)

// innocent is a client that goes on with its work on connections that stay, and connects
// anew for some calls.
type innocent struct {
	at     aim
	target places
	call   func(ctx context.Context) error // on a connection that stays
	renew  func(ctx context.Context) error // likewise, of the lock
	fresh  func(ctx context.Context) error // on a new connection
	close  func()

	stopped chan struct{}
	work    sync.WaitGroup
	served
}

// served is what the innocent got.
type served struct {
	calls, renewals, news []time.Duration
	failed                []error
	mu                    sync.Mutex
}

// How often the innocent calls.
const (
	callEvery   = 2 * time.Millisecond
	renewEvery  = 100 * time.Millisecond
	serverEvery = 10 * time.Millisecond
	newEvery    = 100 * time.Millisecond
)

func newInnocent(t places, at aim) *innocent {
	i := &innocent{at: at, target: t, stopped: make(chan struct{})}
	if at == server {
		i.useServer()
	} else {
		i.useSocket()
	}
	return i
}

// useSocket makes the innocent a client of the daemon.
func (i *innocent) useSocket() {
	dial := func(ctx context.Context) (*wire.Client, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", i.target.Socket)
		if err != nil {
			return nil, err
		}
		return wire.NewClient(conn), nil
	}
	var open []*wire.Client // one for IDs, and one for the lock
	line := func() func(ctx context.Context, method string, params ...any) error {
		n := len(open)
		open = append(open, nil)
		return func(ctx context.Context, method string, params ...any) (err error) {
			if c := open[n]; c == nil || c.Err() != nil {
				if c != nil {
					_ = c.Close()
				}
				if open[n], err = dial(ctx); err != nil {
					return err
				}
			}
			return open[n].Call(ctx, method, nil, params...)
		}
	}
	ask, keep := line(), line()
	i.call = func(ctx context.Context) error { return ask(ctx, "NextID", options{"regular_only": true}) }
	term := options{"ttl_ms": lockTerm.Milliseconds()}
	held := false
	i.renew = func(ctx context.Context) error {
		if held {
			return keep(ctx, "Lock.Renew", heldLock, term)
		}
		err := keep(ctx, "Lock.Acquire", heldLock, term)
		held = err == nil
		return err
	}
	i.fresh = func(ctx context.Context) error {
		c, err := dial(ctx)
		if err != nil {
			return err
		}
		defer c.Close()
		err = c.Call(ctx, "NextID", nil)
		switch {
		case err == nil && i.at == admin:
			return i.get(ctx, once(), "http://"+i.target.Admin+"/readyz")
		case err == nil && i.at == doors:
			return i.askDoors(ctx)
		}
		return err
	}
	i.close = func() {
		for _, c := range open {
			if c != nil {
				_ = c.Close()
			}
		}
	}
}

// once is a client whose requests have a connection each.
func once() *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: unchecked(), DisableKeepAlives: true}}
}

// useServer makes the innocent a client of the lease server.
func (i *innocent) useServer() {
	stays := &http.Client{Transport: &http.Transport{TLSClientConfig: unchecked(), MaxIdleConnsPerHost: 1}}
	held := false
	post := func(ctx context.Context, what string) error {
		body, err := json.Marshal(options{"ttl_ms": lockTerm.Milliseconds(), "request_id": uuid.Must(uuid.NewV7())})
		if err != nil {
			return err
		}
		return i.do(ctx, stays, http.MethodPost, "https://"+i.target.Server+lockPath(heldLock, what), body)
	}
	i.renew = func(ctx context.Context) error {
		if held {
			return post(ctx, "/renew")
		}
		err := post(ctx, "/acquire")
		held = err == nil
		return err
	}
	i.call = i.renew
	i.fresh = func(ctx context.Context) error {
		return i.get(ctx, once(), "https://"+i.target.Server+lockPath(heldLock, ""))
	}
	i.close = stays.CloseIdleConnections
}

func (i *innocent) get(ctx context.Context, c *http.Client, url string) error {
	return i.do(ctx, c, http.MethodGet, url, nil)
}

func (i *innocent) do(ctx context.Context, c *http.Client, method, url string, body []byte) error {
	r, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+innocentToken)
	r.Header.Set("Content-Type", "application/json")
	answer, err := c.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s: %s", method, url, answer.Status, bytes.TrimSpace(text))
	}
	return err
}

// warmUp makes each call once.
func (i *innocent) warmUp() error {
	for _, one := range []struct {
		what string
		do   func(context.Context) error
	}{{"a call", i.call}, {"the lock", i.renew}, {"a new connection", i.fresh}} {
		ctx, cancel := context.WithTimeout(context.Background(), callLimit)
		err := again(ctx, one.do, slowDisk)
		cancel()
		if err != nil {
			return fmt.Errorf("the innocent client: %s: %w", one.what, err)
		}
	}
	return nil
}

// anew is fresh until it succeeds, as a client tries that is told to come again.
func (i *innocent) anew(ctx context.Context) error {
	return again(ctx, i.fresh, func(error) bool { return true })
}

// again makes a call until it succeeds, or fails in a way that is not to be repeated.
func again(ctx context.Context, do func(context.Context) error, repeat func(error) bool) error {
	for {
		err := do(ctx)
		if err == nil || !repeat(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(shortPause):
		}
	}
}

// slowDisk reports whether a call failed because the store took too long: clients ask
// again then. A refusal because of others' load is no such error.
func slowDisk(err error) bool {
	return strings.Contains(err.Error(), "STORE_UNAVAILABLE") || strings.Contains(err.Error(), "PROVIDER_UNAVAILABLE")
}

// begin starts the work.
func (i *innocent) begin() {
	every := callEvery
	if i.at == server {
		every = serverEvery
	}
	i.work.Go(func() { i.repeat(every, &i.calls, i.call) })
	if i.at != server { // there all calls renew the lock
		i.work.Go(func() { i.repeat(renewEvery, &i.renewals, i.renew) })
	}
	i.work.Go(func() { i.repeat(newEvery, &i.news, i.anew) })
}

func (i *innocent) repeat(every time.Duration, took *[]time.Duration, do func(context.Context) error) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-i.stopped:
			return
		case <-tick.C:
		}
		ctx, cancel := context.WithTimeout(context.Background(), callLimit)
		began := time.Now()
		err := again(ctx, do, slowDisk)
		cancel()
		i.mu.Lock()
		*took = append(*took, time.Since(began))
		if err != nil {
			i.failed = append(i.failed, err)
		}
		i.mu.Unlock()
	}
}

// end waits for the last answers.
func (i *innocent) end() *served {
	close(i.stopped)
	i.work.Wait()
	return &i.served
}

// quantile is that of some durations; 0 without any.
func quantile(all []time.Duration, q float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}
