package storm

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	kazahana "github.com/kazahana/kazahana/clients/go"
	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/wire"
)

const (
	goroutines    = 8
	connections   = 2
	ahead         = 64 // of the client that prefetches, and the first half of the goroutines
	largest       = 100
	callTimeout   = time.Minute
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

// askWithClient asks through the client in Go.
func askWithClient(socket string, r *recorder) error {
	timeout := kazahana.WithTimeout(callTimeout)
	plain, err1 := kazahana.New(kazahana.WithSocket(socket), timeout)
	fetching, err2 := kazahana.New(kazahana.WithSocket(socket), timeout, kazahana.WithPrefetch(ahead, 0))
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	defer plain.Close()
	defer fetching.Close()
	return each(goroutines, func(caller int) (err error) {
		head, next := uint64(caller)<<32, func() ([]uint64, error) { return some(plain) }
		if caller < goroutines/2 {
			head |= prefetched
			next = func() ([]uint64, error) { return fetched(fetching) }
		}
		for !r.over.Load() && err == nil {
			err = r.call(head, next)
		}
		return err
	})
}

func some(c *kazahana.Client) (ids []uint64, err error) {
	if rand.N(2) == 0 {
		id, err := c.NextID(context.Background())
		return []uint64{uint64(id)}, err
	}
	batch, err := c.NextIDs(context.Background(), 1+rand.N(largest))
	for _, id := range batch {
		ids = append(ids, uint64(id))
	}
	return ids, err
}

func fetched(c *kazahana.Client) (ids []uint64, err error) {
	for range largest {
		id, err := c.NextID(context.Background())
		if err != nil {
			return nil, err
		}
		ids = append(ids, uint64(id))
	}
	return ids, nil
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
