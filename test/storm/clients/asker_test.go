//go:build linux

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

	"golang.org/x/sys/unix"

	kazahana "github.com/kazahana/kazahana/clients/go"
)

const (
	goroutines    = 8
	ahead         = 64 // of the client that prefetches, and the first half of the goroutines
	largest       = 100
	callTimeout   = time.Minute
	flushInterval = 50 * time.Millisecond
)

// monotonic is the clock that the askers of all languages read, in nanoseconds.
func monotonic() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return uint64(ts.Nano())
}

// recorder writes the records of several callers to one file.
type recorder struct {
	mu      sync.Mutex
	out     *bufio.Writer
	flushed uint64
}

func (r *recorder) add(head, sent uint64, ids []kazahana.ID) error {
	received := monotonic()
	b := make([]byte, 0, 8*(3+len(ids)))
	for _, word := range []uint64{head | uint64(len(ids)), sent, received} {
		b = binary.LittleEndian.AppendUint64(b, word)
	}
	for _, id := range ids {
		b = binary.LittleEndian.AppendUint64(b, uint64(id))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := r.out.Write(b); err != nil || received-r.flushed < uint64(flushInterval) {
		return err
	}
	r.flushed = received
	return r.out.Flush()
}

// ask is the asker in Go: it asks until the standard input ends.
func ask(socket, path string) error {
	var over atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		over.Store(true)
	}()
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	r := &recorder{out: bufio.NewWriterSize(file, 1<<20)}
	timeout := kazahana.WithTimeout(callTimeout)
	plain, err1 := kazahana.New(kazahana.WithSocket(socket), timeout)
	fetching, err2 := kazahana.New(kazahana.WithSocket(socket), timeout, kazahana.WithPrefetch(ahead, 0))
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	defer plain.Close()
	defer fetching.Close()
	errs := make([]error, goroutines)
	var all sync.WaitGroup
	for caller := range errs {
		all.Go(func() {
			head, next := uint64(caller)<<32, func() ([]kazahana.ID, error) { return some(plain) }
			if caller < goroutines/2 {
				head |= prefetched
				next = func() ([]kazahana.ID, error) { return fetched(fetching) }
			}
			for !over.Load() && errs[caller] == nil {
				sent := monotonic()
				ids, err := next()
				if err != nil {
					fmt.Fprintln(os.Stderr, err)
					ids = nil
				}
				errs[caller] = r.add(head, sent, ids)
			}
		})
	}
	all.Wait()
	return errors.Join(append(errs, r.out.Flush(), file.Close())...)
}

func some(c *kazahana.Client) ([]kazahana.ID, error) {
	if rand.N(2) == 0 {
		id, err := c.NextID(context.Background())
		return []kazahana.ID{id}, err
	}
	return c.NextIDs(context.Background(), 1+rand.N(largest))
}

func fetched(c *kazahana.Client) (ids []kazahana.ID, err error) {
	for range largest {
		id, err := c.NextID(context.Background())
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}
