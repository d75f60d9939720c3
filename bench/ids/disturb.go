//go:build linux

package ids

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	_ "modernc.org/sqlite"
)

const (
	scrapePause = 100 * time.Millisecond
	// With a term of little more than a second, a lease is often due while the
	// file is locked, and sometimes ends before it is free again.
	lockTime  = 500 * time.Millisecond
	lockPause = 300 * time.Millisecond
	// disturbing is what the part disturb prints when it has begun.
	disturbing = "disturbing"
)

// disturbOptions are the options of the part disturb.
type disturbOptions struct {
	Admin  string // path of the socket with the metrics
	Leases string // path of the provider's file
}

// disturbMain is the part disturb: it reads a daemon's metrics again and again, and
// locks its provider's file for most of the time, until it is killed.
func disturbMain(o disturbOptions) error {
	var begun sync.WaitGroup
	begun.Add(2)
	failed := make(chan error)
	go func() { failed <- scrape(o.Admin, begun.Done) }()
	go func() { failed <- lock(o.Leases, begun.Done) }()
	go func() {
		begun.Wait()
		fmt.Fprintln(os.Stdout, disturbing)
	}()
	return <-failed
}

// scrape reads the metrics until that fails. It calls begun after the first time.
func scrape(admin string, begun func()) error {
	client := metricsClient(admin)
	begun = sync.OnceFunc(begun)
	for range time.Tick(scrapePause) {
		if _, err := readMetrics(client); err != nil {
			return err
		}
		begun()
	}
	return errors.New("the clock stopped")
}

// metricsClient speaks HTTP through a Unix socket.
func metricsClient(admin string) *http.Client {
	return &http.Client{
		Timeout: startLimit,
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", admin)
		}},
	}
}

func readMetrics(client *http.Client) (string, error) {
	answer, err := client.Get("http://daemon/metrics")
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && (answer.StatusCode != http.StatusOK || len(text) == 0) {
		err = fmt.Errorf("/metrics: %s, %d bytes", answer.Status, len(text))
	}
	return string(text), err
}

// lock holds the one lock that writers of the file need, lets go of it, and so
// on. It calls begun when it holds it for the first time.
func lock(path string, begun func()) error {
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)")
	if err != nil {
		return err
	}
	defer db.Close()
	ctx := context.Background()
	conn, err := db.Conn(ctx) // a transaction belongs to one connection
	if err != nil {
		return err
	}
	begun = sync.OnceFunc(begun)
	for {
		if _, err := conn.ExecContext(ctx, "BEGIN EXCLUSIVE"); err != nil {
			return fmt.Errorf("lock %s: %w", path, err)
		}
		begun()
		time.Sleep(lockTime)
		if _, err := conn.ExecContext(ctx, "ROLLBACK"); err != nil {
			return fmt.Errorf("unlock %s: %w", path, err)
		}
		time.Sleep(lockPause)
	}
}
