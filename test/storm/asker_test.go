package storm

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/wire"
)

const (
	connections   = 2
	flushInterval = 50 * time.Millisecond
)

// recorder writes the records of several callers to one file.
type recorder struct {
	over atomic.Bool // the standard input has ended

	mu      sync.Mutex
	out     *bufio.Writer
	flushed uint64
}

// record has callers ask until the standard input ends, and writes what they get.
func record(socket, path string, callers func(socket string, r *recorder) error) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	r := &recorder{out: bufio.NewWriterSize(file, 1<<20)}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		r.over.Store(true)
	}()
	return errors.Join(callers(socket, r), r.out.Flush(), file.Close())
}

// call makes one call and records it; one that fails gets no ID. A connection that is
// lost is the caller's affair.
func (r *recorder) call(head uint64, next func() ([]uint64, error)) error {
	sent, err := testkit.Monotonic()
	if err != nil {
		return err
	}
	ids, failed := next()
	if errors.Is(failed, wire.ErrConnectionLost) {
		return failed
	}
	if failed != nil {
		fmt.Fprintln(os.Stderr, failed)
		ids = nil
	}
	received, err := testkit.Monotonic()
	if err != nil {
		return err
	}
	b := make([]byte, 0, 8*(headWords+len(ids)))
	for _, word := range append([]uint64{head | uint64(len(ids)), sent, received}, ids...) {
		b = binary.LittleEndian.AppendUint64(b, word)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := r.out.Write(b); err != nil || received-r.flushed < uint64(flushInterval) {
		return err
	}
	r.flushed = received
	return r.out.Flush()
}

// each runs n callers until all have ended.
func each(n int, run func(caller int) error) error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for caller := range errs {
		all.Go(func() { errs[caller] = run(caller) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// askOnWire asks on bare connections, and on the next one when the daemon dies.
func askOnWire(socket string, r *recorder) error {
	return each(connections, func(caller int) error {
		for lost := time.Now(); !r.over.Load(); {
			c, err := testkit.DialSocket(socket)
			if err != nil {
				if time.Since(lost) > await.Patience {
					return fmt.Errorf("nobody answers any more: %w", err)
				}
				time.Sleep(await.Interval)
				continue
			}
			if err := askUntilLost(c, uint64(caller)<<32, r); err != nil {
				return err
			}
			lost = time.Now()
		}
		return nil
	})
}

func askUntilLost(c *wire.Client, head uint64, r *recorder) (err error) {
	defer c.Close()
	for err == nil && !r.over.Load() {
		err = r.call(head, func() ([]uint64, error) { return testkit.AskSome(c) })
	}
	if errors.Is(err, wire.ErrConnectionLost) {
		return nil
	}
	return err
}
