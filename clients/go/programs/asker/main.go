//go:build linux

// Command asker asks the daemon of a socket for IDs until its standard input ends, and
// writes the answers to a file, in the form that the storm of the repository's tests reads:
// words of 64 bits, little-endian. A call is its caller and the number of its IDs, the
// moments when it was sent and answered, and the IDs.
package main

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
	"syscall"
	"time"
	"unsafe"

	kazahana "github.com/kazahana/kazahana/clients/go"
)

const (
	goroutines    = 8
	ahead         = 64      // of the client that prefetches, and the first half of the goroutines
	prefetched    = 1 << 63 // marks a caller of prefetched IDs
	largest       = 100
	callTimeout   = time.Minute
	flushInterval = 50 * time.Millisecond
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: asker SOCKET FILE")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "asker:", err)
		os.Exit(1)
	}
}

func run(socket, path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	r := &recorder{out: bufio.NewWriterSize(file, 1<<20)}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		r.over.Store(true)
	}()
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
		head, next := uint64(caller)<<32, func() ([]kazahana.ID, error) { return some(plain) }
		if caller < goroutines/2 {
			head |= prefetched
			next = func() ([]kazahana.ID, error) { return fetched(fetching) }
		}
		all.Go(func() {
			for !r.over.Load() && errs[caller] == nil {
				errs[caller] = r.call(head, next)
			}
		})
	}
	all.Wait()
	return errors.Join(errors.Join(errs...), r.out.Flush(), file.Close())
}

// recorder writes the records of several callers to one file.
type recorder struct {
	over atomic.Bool // the standard input has ended

	mu      sync.Mutex
	out     *bufio.Writer
	flushed uint64
}

// call makes one call and records it; a failed call gets no ID.
func (r *recorder) call(head uint64, next func() ([]kazahana.ID, error)) error {
	sent := monotonic()
	ids, failed := next()
	if failed != nil {
		fmt.Fprintln(os.Stderr, failed)
		ids = nil
	}
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

// monotonic is the clock that all askers share, in nanoseconds.
func monotonic() uint64 {
	const clockMonotonic = 1
	var ts syscall.Timespec
	if _, _, err := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&ts)), 0); err != 0 {
		panic(err)
	}
	return uint64(ts.Nano())
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
