package main

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
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kazahana/kazahana/internal/leaseapi"
	"github.com/kazahana/kazahana/internal/provider"
)

const (
	startTimeout = 10 * time.Second
	roundTimeout = 60 * time.Second
	// dialers is how many connections are made at the same time before the start:
	// the kernel's queue of those not accepted yet is finite.
	dialers = 256
)

// result is one round.
type result struct {
	took    []time.Duration // of each client, ascending
	elapsed time.Duration   // until the last had its answer
	commits int
}

func (r result) perSecond() float64 { return float64(len(r.took)) / r.elapsed.Seconds() }

// percentile is the smallest time within which that many clients had an answer.
func (r result) percentile(p int) time.Duration {
	return r.took[max((len(r.took)*p+99)/100, 1)-1]
}

// round starts a server, runs one storm against it, and looks at the grants.
func round(ctx context.Context, binary, parent string, clients int, m mode) (r result, err error) {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	dir, err := os.MkdirTemp(parent, "kazahana-benchleases-")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(dir)
	address, stop, err := startServer(ctx, binary, dir)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	answers, r, err := storm(ctx, address, clients, m)
	if err != nil {
		return r, err
	}
	r.commits, err = judge(answers)
	return r, err
}

// startServer returns when the server answers.
func startServer(ctx context.Context, binary, dir string) (address string, stop func() error, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	address = l.Addr().String()
	if err := l.Close(); err != nil {
		return "", nil, err
	}
	cmd := exec.CommandContext(ctx, binary, "lease-server", "--config", "none", "--listen", address,
		"--provider", "sqlite:"+filepath.Join(dir, "leases.db"), "--provider-timeout", "30s",
		"--rate-limit", "0", "--drain-delay", "0", "--log-level", "warn")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return "", nil, fmt.Errorf("%w (make build makes it)", err)
	}
	stop = func() error {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		return cmd.Wait()
	}
	for deadline := time.Now().Add(startTimeout); ; time.Sleep(10 * time.Millisecond) {
		res, err := http.Get("http://" + address + "/readyz")
		if err == nil {
			_ = res.Body.Close()
			if res.StatusCode == http.StatusOK {
				http.DefaultClient.CloseIdleConnections()
				return address, stop, nil
			}
		}
		if time.Now().After(deadline) {
			return "", nil, errors.Join(errors.New("the server does not get ready"), stop())
		}
	}
}

// storm has all clients ask at once.
func storm(ctx context.Context, address string, clients int, m mode) ([]leaseapi.AcquireResponse, result, error) {
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
			return nil, result{}, err
		}
	}
	answers, errs := make([]leaseapi.AcquireResponse, clients), make([]error, clients)
	r := result{took: make([]time.Duration, clients)}
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
			answers[i], errs[i] = ask(conns[i], request)
			r.took[i] = time.Since(began)
		})
	}
	began = time.Now()
	close(start)
	all.Wait()
	r.elapsed = time.Since(began)
	slices.Sort(r.took)
	return answers, r, firstOf(errs)
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
	if res.StatusCode != http.StatusOK {
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
