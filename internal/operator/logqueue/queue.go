// Package logqueue lets a process log without waiting for its log. A file on a
// frozen disk, a full pipe or a stuck journal must not hold up a request, a
// lease or the watchdog.
//
// Lines wait in memory for one goroutine that writes them in order. While the
// queue is full, new lines are dropped and counted. Once the queue is empty
// again, the owner is asked to log how many were dropped.
package logqueue

import (
	"bytes"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// Limits of the queue; the first one reached counts.
const (
	MaxLines = 4096
	MaxBytes = 1 << 20
)

// FlushTimeout bounds how long Sync and Close wait for the lines in the queue.
const FlushTimeout = time.Second

// Queue is a zapcore.WriteSyncer. It is safe for concurrent use.
type Queue struct {
	out     io.Writer
	total   atomic.Uint64 // lines dropped
	mu      sync.Mutex
	changed sync.Cond // of everything below
	lines   [][]byte  // the first is being written
	size    int       // bytes in lines
	unsaid  uint64    // dropped lines that the log does not report yet
	report  func(dropped uint64)
	busy    bool // the goroutine writes or reports
	closed  bool
}

// New returns a queue in front of out. Writes to out may block.
func New(out io.Writer) *Queue {
	q := &Queue{out: out}
	q.changed.L = &q.mu
	go q.drain()
	return q
}

// OnDrained sets the function that logs a number of dropped lines. It is called
// once for each gap, after the queue has been written out. It may log to the
// queue.
func (q *Queue) OnDrained(report func(dropped uint64)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.report = report
}

// Dropped is the number of lines lost so far.
func (q *Queue) Dropped() uint64 { return q.total.Load() }

// Write queues a copy of one line, or drops it. It never blocks and never fails.
func (q *Queue) Write(line []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || len(q.lines) >= MaxLines || q.size+len(line) > MaxBytes {
		q.drop()
		return len(line), nil
	}
	q.lines = append(q.lines, bytes.Clone(line))
	q.size += len(line)
	q.changed.Broadcast()
	return len(line), nil
}

func (q *Queue) drop() {
	q.total.Add(1)
	q.unsaid++
}

// Sync waits until all lines are written, for FlushTimeout at most. It does not
// sync the file: lines that the kernel has outlive the process.
func (q *Queue) Sync() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.flush()
	return nil
}

// Close flushes as Sync does and ends the goroutine, as soon as a write that
// blocks returns. Lines written after Close are dropped.
func (q *Queue) Close() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.flush()
	q.closed = true
	q.changed.Broadcast()
	return nil
}

// flush is called with the lock held.
func (q *Queue) flush() {
	expired := false
	timer := time.AfterFunc(FlushTimeout, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		expired = true
		q.changed.Broadcast()
	})
	defer timer.Stop()
	for (q.busy || len(q.lines) > 0) && !expired && !q.closed {
		q.changed.Wait()
	}
}

// drain writes the lines until the queue is closed.
func (q *Queue) drain() {
	q.mu.Lock()
	defer q.mu.Unlock()
	torn := false // the last write ended within a line
	for {
		q.busy = false
		q.changed.Broadcast()
		for len(q.lines) == 0 && !q.closed {
			q.changed.Wait()
		}
		if q.closed {
			return
		}
		q.busy = true
		line := q.lines[0]
		if torn {
			line = append([]byte{'\n'}, line...)
		}
		q.mu.Unlock()
		n, err := q.out.Write(line)
		q.mu.Lock()
		q.size -= len(q.lines[0])
		q.lines[0] = nil // the array outlives the line
		q.lines = q.lines[1:]
		if err != nil {
			torn = torn || 0 < n && n < len(line)
			q.drop()
			continue
		}
		torn = false
		q.tellGap()
	}
}

// tellGap calls the function of OnDrained, once the queue is empty and its last line
// was written.
func (q *Queue) tellGap() {
	if len(q.lines) > 0 || q.unsaid == 0 || q.report == nil {
		return
	}
	dropped := q.unsaid
	q.unsaid = 0
	q.mu.Unlock()
	q.report(dropped)
	q.mu.Lock()
}
