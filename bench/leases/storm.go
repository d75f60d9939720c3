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
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/leaseapi"
	"github.com/kazahana/kazahana/internal/provider"
)

// storm has all clients ask at once, and returns the time of each, in ascending order.
func storm(ctx context.Context, address string, clients int) (took []time.Duration, elapsed time.Duration, err error) {
	answers, errs := make([]leaseapi.AcquireResponse, clients), make([]error, clients)
	took = make([]time.Duration, clients)
	start := make(chan struct{})
	var began time.Time
	var all sync.WaitGroup
	for i := range clients {
		request := requestOf(address, i)
		all.Go(func() {
			<-start
			answers[i], errs[i] = acquire(ctx, address, request)
			took[i] = time.Since(began)
		})
	}
	began = time.Now()
	close(start)
	all.Wait()
	elapsed = time.Since(began)
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		return nil, 0, errs[i]
	}
	slices.Sort(took)
	return took, elapsed, judge(answers)
}

// acquire connects and asks, again if it should.
func acquire(ctx context.Context, address, request string) (leaseapi.AcquireResponse, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return leaseapi.AcquireResponse{}, err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	for {
		answer, err := ask(conn, request)
		if !errors.Is(err, errUnavailable) {
			return answer, err
		}
		time.Sleep(time.Second) // as a daemon does
	}
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

// judge makes sure that no slot was granted twice.
func judge(answers []leaseapi.AcquireResponse) error {
	slots := map[int64]bool{}
	for _, a := range answers {
		if len(a.Leases) != 1 {
			return fmt.Errorf("an acquire gave %d leases", len(a.Leases))
		}
		l := a.Leases[0]
		if err := l.Validate(); err != nil {
			return err
		}
		if slots[l.Slot().Start] {
			return fmt.Errorf("machine ID %d was granted twice", l.ID)
		}
		slots[l.Slot().Start] = true
	}
	return nil
}
