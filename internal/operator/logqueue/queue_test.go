package logqueue

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// reader is the far end of the log: it takes a write for each token.
type reader struct {
	tokens chan error // the outcome of the next write; closed: all succeed
	short  int        // bytes that a failing write takes
	got    bytes.Buffer
}

func newReader() *reader { return &reader{tokens: make(chan error)} }

func (r *reader) Write(p []byte) (int, error) {
	if err := <-r.tokens; err != nil {
		r.got.Write(p[:r.short])
		return r.short, err
	}
	return r.got.Write(p)
}

// ready lets all further writes succeed.
func (r *reader) ready() { close(r.tokens) }

func write(t *testing.T, q *Queue, format string, args ...any) {
	t.Helper()
	line := fmt.Sprintf(format, args...) + "\n"
	if n, err := q.Write([]byte(line)); n != len(line) || err != nil {
		t.Fatalf("Write: %d, %v", n, err)
	}
}

// A healthy reader gets every line, in order; the caller may reuse its buffer.
func TestNothingIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReader()
		r.ready()
		q := New(r)
		var want strings.Builder
		buffer := make([]byte, 0, 100)
		for i := range 10 * MaxLines {
			buffer = fmt.Appendf(buffer[:0], "line %d\n", i)
			want.Write(buffer)
			_, _ = q.Write(buffer)
			if i%MaxLines == 0 {
				synctest.Wait()
			}
		}
		_ = q.Close()
		if r.got.String() != want.String() {
			t.Errorf("%d bytes were written, want %d, or another order", r.got.Len(), want.Len())
		}
		if q.Dropped() != 0 {
			t.Errorf("%d lines dropped", q.Dropped())
		}
	})
}

// While the reader takes nothing, writers go on. Afterwards one line says how
// many lines are missing, behind the kept ones.
func TestBlockedReader(t *testing.T) {
	for name, text := range map[string]string{"lines": "line", "bytes": strings.Repeat("x", 5000)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReader()
				q := New(r)
				q.OnDrained(func(n uint64) { write(t, q, "dropped %d", n) })
				const all = 2 * MaxLines
				for i := range all {
					write(t, q, "%s %d", text, i)
				}
				kept := all - int(q.Dropped())
				if kept < 1 || kept > MaxLines || q.size > MaxBytes || q.size < len(text)*kept {
					t.Fatalf("%d lines of %d bytes are kept", kept, q.size)
				}
				if name == "bytes" && kept >= MaxLines {
					t.Fatalf("%d lines are kept: the bytes have no limit", kept)
				}
				r.ready()
				synctest.Wait()
				write(t, q, "after")
				_ = q.Sync()
				var want strings.Builder
				for i := range kept {
					fmt.Fprintf(&want, "%s %d\n", text, i)
				}
				fmt.Fprintf(&want, "dropped %d\nafter\n", all-kept)
				if got := r.got.String(); got != want.String() {
					t.Errorf("written:\n%s", got[max(0, len(got)-200):])
				}
				_ = q.Close()
			})
		})
	}
}

// Sync and Close wait for a slow reader, and not for a stuck one.
func TestFlushIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReader()
		q := New(r)
		write(t, q, "first")
		write(t, q, "last")
		time.AfterFunc(FlushTimeout/2, r.ready)
		began := time.Now()
		_ = q.Sync()
		if took := time.Since(began); took != FlushTimeout/2 || r.got.String() != "first\nlast\n" {
			t.Errorf("after %v: %q", took, r.got.String())
		}
		_ = q.Close()
	})
	synctest.Test(t, func(t *testing.T) {
		r := newReader()
		q := New(r)
		write(t, q, "first")
		for name, end := range map[string]func() error{"sync": q.Sync, "close": q.Close} {
			began := time.Now()
			_ = end()
			if took := time.Since(began); took > FlushTimeout {
				t.Errorf("%s took %v", name, took)
			}
		}
		write(t, q, "too late")
		r.ready()
		synctest.Wait()
		if got := r.got.String(); strings.Contains(got, "too late") || q.Dropped() != 1 {
			t.Errorf("after the end: %q, %d dropped", got, q.Dropped())
		}
	})
}

// The gap's own line is flushed too.
func TestFlushWaitsForTheReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReader()
		q := New(r)
		q.OnDrained(func(n uint64) {
			time.Sleep(FlushTimeout / 4)
			write(t, q, "dropped %d", n)
		})
		for range MaxLines + 2 {
			write(t, q, "line")
		}
		r.ready()
		_ = q.Close()
		if got := r.got.String(); !strings.HasSuffix(got, "line\ndropped 2\n") {
			t.Errorf("written: %q", got[max(0, len(got)-50):])
		}
	})
}

// A failed write loses its line. The next successful one begins a line, and the loss is told.
func TestFailingReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReader()
		q := New(r)
		q.OnDrained(func(n uint64) { write(t, q, "dropped %d", n) })
		full := errors.New("no space left on device")
		write(t, q, "one")
		r.tokens <- nil
		write(t, q, "two")
		r.short = 2
		r.tokens <- full
		write(t, q, "three")
		synctest.Wait() // it has read r.short
		r.short = 0
		r.tokens <- full
		synctest.Wait()
		if q.Dropped() != 2 {
			t.Errorf("%d dropped", q.Dropped())
		}
		r.ready()
		write(t, q, "four")
		_ = q.Close()
		if got := r.got.String(); got != "one\ntw\nfour\ndropped 2\n" {
			t.Errorf("written: %q", got)
		}
	})
}

// A reader that fails for good is not asked to take lines about lines.
func TestReaderGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReader()
		q := New(r)
		q.OnDrained(func(n uint64) { write(t, q, "dropped %d", n) })
		for range 3 {
			write(t, q, "line")
			r.tokens <- errors.New("broken pipe")
		}
		_ = q.Close()
		if q.Dropped() != 3 {
			t.Errorf("%d dropped, want 3", q.Dropped())
		}
	})
}
