package wire

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

// counter is a Memory with a limit for messages.
type counter struct {
	held, limit int
	progress    int
}

var errNoMemory = errors.New("no memory")

func (c *counter) Reserve(n int) error {
	if c.held+n > c.limit {
		return errNoMemory
	}
	c.held += n
	return nil
}

func (c *counter) Progress()  { c.progress++ }
func (c *counter) Take(n int) { c.held += n }
func (c *counter) Give(n int) { c.held -= n }

// counted is what a buffer of that size counts as.
func counted(size int) int {
	if size > FreeBuffer {
		return size
	}
	return 0
}

// The count is of the present larger buffers, with any reads and answers.
func TestMemoryIsCounted(t *testing.T) {
	var stream []byte
	sizes := []int{0, 5000, 70_000, 1, 250_000, 300, 300}
	for i, size := range sizes {
		stream = append(stream, request(t, i, "m", make([]byte, size))...)
	}
	for range 20_000 {
		stream = append(stream, request(t, 1, "NextID")...)
	}
	m := &counter{limit: 2 * MaxMessage}
	conn := NewServerConn(bytes.NewReader(stream), io.Discard)
	conn.SetMemory(m)
	var r Request
	n := 0
	for ; conn.Read(&r) == nil; n++ {
		conn.BeginArray(r.ID, n%700)
		conn.AppendRange(1, n%700)
		if m.held != counted(len(conn.in.buf))+counted(cap(conn.out.buf)) {
			t.Fatalf("%d bytes are counted, buffers have %d and %d", m.held, len(conn.in.buf), cap(conn.out.buf))
		}
		if !conn.Pending() {
			must.Succeed(t, conn.Flush())
		}
	}
	if n != len(sizes)+20_000 || m.progress == 0 {
		t.Errorf("%d messages, progress was told %d times", n, m.progress)
	}
	must.Succeed(t, conn.Flush())
	conn.Discard()
	if m.held != 0 {
		t.Errorf("%d bytes are still counted", m.held)
	}
}

// atTake notes how much has been allocated when memory is taken.
type atTake struct {
	counter
	allocated uint64
}

func (a *atTake) Take(int) { a.allocated = totalAllocated() }

// A buffer is made once memory for it was taken, which may have to be waited for: thousands
// that wait have none yet.
func TestMemoryIsTakenFirst(t *testing.T) {
	const size = 1 << 20
	m := &atTake{}
	s := sink{memory: m}
	before := totalAllocated()
	s.grow(size)
	if made := m.allocated - before; m.allocated == 0 || made >= size {
		t.Errorf("%d bytes had been allocated when memory was taken for %d", made, cap(s.buf))
	}
}

// A message for which there is no memory ends the reading.
func TestNoMemory(t *testing.T) {
	stream := append(request(t, 1, "m"), request(t, 2, "m", make([]byte, 200_000))...)
	for _, preload := range []int{0, 50_000} {
		m := &counter{limit: 150_000}
		conn := NewServerConn(bytes.NewReader(stream[preload:]), io.Discard)
		conn.SetMemory(m)
		conn.Preload(stream[:preload])
		var r Request
		must.Succeed(t, conn.Read(&r))
		for range 2 {
			if err := conn.Read(&r); !errors.Is(err, errNoMemory) {
				t.Fatalf("got %v", err)
			}
		}
		if conn.Discard(); m.held != 0 {
			t.Errorf("%d bytes are still counted", m.held)
		}
	}
}
