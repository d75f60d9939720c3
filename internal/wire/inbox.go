package wire

import "fmt"

// An Inbox holds the bytes from a peer and cuts them into messages. It does no I/O:
// fill Space, call Added, take messages with Next. It is not safe for concurrent use.
type Inbox struct {
	split  Splitter
	memory Memory // nil: not counted

	buf        []byte
	start, end int   // buf[start:end] has not been handed out
	ready      int   // length of the whole message at start, 0 if none is known
	last       int   // bytes added last; how busy the peer is
	filled     bool  // the last addition left no space: more is likely waiting
	err        error // sticky: no message can be found any more
}

// NewInbox returns an Inbox for messages of at most limit bytes.
func NewInbox(limit int) *Inbox { return &Inbox{split: NewSplitter(limit)} }

// Next returns the next whole message, or nil if its end has not come yet. The
// slice lives until the next call of Space or Release. An error is a
// *ParseError and stays.
func (in *Inbox) Next() ([]byte, error) {
	if !in.Pending() {
		return nil, nil
	}
	if in.err != nil {
		return nil, in.err
	}
	msg := in.buf[in.start : in.start+in.ready : in.start+in.ready]
	in.start += in.ready
	in.ready = 0
	return msg, nil
}

// Pending reports whether Next would return a message or an error without more bytes.
func (in *Inbox) Pending() bool {
	if in.ready == 0 && in.err == nil && in.start < in.end {
		in.ready, in.err = in.split.Scan(in.buf[in.start:in.end])
	}
	return in.ready > 0 || in.err != nil
}

// Partial reports whether there are bytes that Next has not returned yet.
func (in *Inbox) Partial() bool { return in.start < in.end }

// Space returns where the next bytes go. It is never empty if Next has been
// called until it returned nil, unless there is no memory: Next then returns the reason.
// Messages handed out before are invalid.
func (in *Inbox) Space() []byte {
	held := in.end - in.start
	size := len(in.buf)
	if in.memory != nil && size > FreeBuffer && in.start > 0 {
		in.memory.Progress()
	}
	switch {
	case held == 0 && in.filled && size < mediumBuffer:
		in.rebuild(mediumBuffer)
	case held == 0 && size != idleSize(in.last):
		in.rebuild(idleSize(in.last))
	case held == 0:
		in.start, in.end = 0, 0
	case held == size:
		// A message that fills the buffer is still within its limit, or the
		// Splitter would have refused it.
		in.grow(min(nextSize(size), max(in.split.maximum(), largeBuffer)))
	case in.filled && size < mediumBuffer:
		in.rebuild(nextSize(size))
	case size-in.end < size/4 && in.start > 0:
		// A message moves to the front at most once: O(n) in total.
		in.end = copy(in.buf, in.buf[in.start:in.end])
		in.start = 0
	}
	return in.buf[in.end:]
}

// Added says that the first n bytes of Space are filled now.
func (in *Inbox) Added(n int) {
	if n < 0 || n > len(in.buf)-in.end {
		panic(fmt.Sprintf("wire: %d bytes added to a space of %d", n, len(in.buf)-in.end))
	}
	if n == 0 {
		return
	}
	in.end += n
	in.last = n
	in.filled = in.end == len(in.buf)
}

// Preload puts bytes that were read elsewhere at the beginning of a new Inbox.
func (in *Inbox) Preload(b []byte) {
	for len(b) > 0 && in.err == nil {
		n := copy(in.Space(), b)
		in.Added(n)
		b = b[n:]
	}
}

// Release gives the buffer back if it holds nothing. Messages handed out before are invalid.
func (in *Inbox) Release() {
	if in.start < in.end {
		return
	}
	in.drop()
	in.buf, in.start, in.end, in.filled = nil, 0, 0, false
}

// drop gives the buffer back.
func (in *Inbox) drop() {
	if in.memory != nil && len(in.buf) > FreeBuffer {
		in.memory.Give(len(in.buf))
	}
	giveBack(in.buf)
}

// reject makes Next return err from now on.
func (in *Inbox) reject(err error) error {
	in.err = err
	return err
}

// grow makes a full buffer larger. No memory for it is an error.
func (in *Inbox) grow(size int) {
	if in.memory != nil && size > FreeBuffer {
		if in.err = in.memory.Reserve(size); in.err != nil {
			return
		}
	}
	in.rebuild(size)
}

// rebuild moves the content to a buffer of another size.
func (in *Inbox) rebuild(size int) {
	buf := borrow(size)
	in.end = copy(buf, in.buf[in.start:in.end])
	in.start = 0
	in.filled = false
	in.drop()
	in.buf = buf
}
