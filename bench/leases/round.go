//go:build linux

package leases

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kazahana/kazahana/bench/process"
	"github.com/kazahana/kazahana/internal/leaseapi"
	"github.com/kazahana/kazahana/internal/provider"
)

const (
	startTimeout = 30 * time.Second
	roundTimeout = 3 * time.Minute
	// dialers is how many connections are made at the same time before the start:
	// the kernel's queue of those not accepted yet is finite.
	dialers = 256
)

// round starts a store and a server, runs one storm against it, and looks at the grants.
func (b *bench) round(ctx context.Context, number int, s store, m mode) (err error) {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	dir, err := b.Begin()
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	url, behind, err := s.start(ctx, b, dir)
	if err != nil {
		return err
	}
	if behind != nil {
		defer behind.Stop()
	}
	if err := b.initialized(ctx, url); err != nil {
		return err
	}
	address, service, err := b.startServer(ctx, dir, url)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, service.End(startTimeout)) }()
	answers, took, elapsed, err := storm(ctx, address, b.clients, m)
	if err != nil {
		return err
	}
	n, err := judge(answers)
	if err != nil {
		return err
	}
	for quantity, value := range map[string]float64{
		perSecond: float64(len(took)) / elapsed.Seconds(), commits: float64(n),
		p50: percentile(took, 50), p99: percentile(took, 99), slowest: percentile(took, 100),
	} {
		b.samples.Add(number, series(s, m, quantity), value)
	}
	return nil
}

// percentile is the smallest time within which that many clients had an answer, in ns.
func percentile(took []time.Duration, p int) float64 {
	return float64(took[max((len(took)*p+99)/100, 1)-1])
}

// startServer returns when the server answers.
func (b *bench) startServer(ctx context.Context, dir, url string) (address string, service *process.Service, err error) {
	if address, err = process.FreeAddress(); err != nil {
		return "", nil, err
	}
	service, err = b.launch.Launch(filepath.Join(dir, "lease-server.log"), b.Daemon, "lease-server", "--config", "none", "--listen", address,
		"--provider", url, "--state-dir", filepath.Join(dir, "state"), "--store", "none", "--provider-timeout", "30s",
		"--rate-limit", "0", "--drain-delay", "0", "--log-level", "warn")
	if err != nil {
		return "", nil, err
	}
	err = service.Await(ctx, startTimeout, func(context.Context) error {
		res, err := http.Get("http://" + address + "/readyz")
		if err != nil {
			return err
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return errors.New(res.Status)
		}
		http.DefaultClient.CloseIdleConnections()
		return nil
	})
	if err != nil {
		service.Stop()
	}
	return address, service, err
}

// storm has all clients ask at once.
func storm(ctx context.Context, address string, clients int, m mode) (answers []leaseapi.AcquireResponse, took []time.Duration, elapsed time.Duration, err error) {
	conns := make([]net.Conn, clients)
	defer func() {
		for _, c := range conns {
			if c != nil {
				_ = c.Close()
			}
		}
	}()
	if !m.fresh {
		if err := connect(ctx, address, conns); err != nil {
			return nil, nil, 0, err
		}
	}
	answers, took = make([]leaseapi.AcquireResponse, clients), make([]time.Duration, clients)
	errs := make([]error, clients)
	start := make(chan struct{})
	var began time.Time
	var all sync.WaitGroup
	for i := range clients {
		request := requestOf(address, i)
		all.Go(func() {
			<-start
			if m.fresh {
				if conns[i], errs[i] = (&net.Dialer{}).DialContext(ctx, "tcp", address); errs[i] != nil {
					return
				}
			}
			deadline, _ := ctx.Deadline()
			_ = conns[i].SetDeadline(deadline)
			for answers[i], errs[i] = ask(conns[i], request); errors.Is(errs[i], errUnavailable); {
				time.Sleep(retryPause) // as a daemon does
				answers[i], errs[i] = ask(conns[i], request)
			}
			took[i] = time.Since(began)
		})
	}
	began = time.Now()
	close(start)
	all.Wait()
	elapsed = time.Since(began)
	slices.Sort(took)
	return answers, took, elapsed, firstOf(errs)
}

func firstOf(errs []error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// connect opens a connection for every client, some at a time.
func connect(ctx context.Context, address string, conns []net.Conn) error {
	errs := make([]error, len(conns))
	turns := make(chan struct{}, dialers)
	var all sync.WaitGroup
	for i := range conns {
		turns <- struct{}{}
		all.Go(func() {
			defer func() { <-turns }()
			conns[i], errs[i] = (&net.Dialer{}).DialContext(ctx, "tcp", address)
		})
	}
	all.Wait()
	return firstOf(errs)
}

// requestOf is written by hand: a client of package net/http would cost more
// than the server that is measured.
func requestOf(address string, i int) string {
	body := fmt.Sprintf(`{"serviceId":"default","meta":{"host":"host-%d","pid":"1","version":"bench","service":"default"},"throughputPerMs":256,"requestId":"%s"}`,
		i, provider.NewSecret())
	return strings.Join([]string{
		"POST /lease HTTP/1.1", "Host: " + address, "Content-Type: application/json",
		fmt.Sprintf("Content-Length: %d", len(body)), "", body,
	}, "\r\n")
}

// errUnavailable: the store is behind, and the same request may be sent again.
var errUnavailable = errors.New("503 Service Unavailable")

const retryPause = time.Second

func ask(conn net.Conn, request string) (out leaseapi.AcquireResponse, err error) {
	if _, err := io.WriteString(conn, request); err != nil {
		return out, err
	}
	res, err := http.ReadResponse(bufio.NewReaderSize(conn, 1024), nil)
	if err != nil {
		return out, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return out, err
	}
	switch res.StatusCode {
	case http.StatusOK:
	case http.StatusServiceUnavailable:
		return out, errUnavailable
	default:
		return out, fmt.Errorf("%s: %s", res.Status, b)
	}
	return out, json.Unmarshal(b, &out)
}

// judge makes sure that no slot was granted twice, and counts the commits: the
// grants of one commit have the same time.
func judge(answers []leaseapi.AcquireResponse) (commits int, err error) {
	times, slots := map[int64]bool{}, map[int64]bool{}
	for _, a := range answers {
		if len(a.Leases) != 1 {
			return 0, fmt.Errorf("an acquire gave %d leases", len(a.Leases))
		}
		l := a.Leases[0]
		if err := l.Validate(); err != nil {
			return 0, err
		}
		if slots[l.Slot().Start] {
			return 0, fmt.Errorf("machine ID %d was granted twice", l.ID)
		}
		slots[l.Slot().Start], times[l.Created] = true, true
	}
	return len(times), nil
}
