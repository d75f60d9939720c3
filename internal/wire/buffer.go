package wire

import "sync"

// A connection keeps small buffers while it is idle and borrows larger ones while it is
// busy. It keeps a medium one as long as bursts fill it, so that a pipelining client
// does not cause a borrow for every burst; a larger one goes back as soon as it is
// empty. Beyond the largest message of a server they are left to the garbage collector.
const (
	smallBuffer  = 256
	mediumBuffer = 4 << 10
	largeBuffer  = 64 << 10
	hugeBuffer   = MaxMessage
)

// FreeBuffer is the size up to which a connection's buffers are not counted.
const FreeBuffer = mediumBuffer

// Memory counts the larger buffers of a connection. It may be called by one goroutine
// for reading and another one for answers at a time.
type Memory interface {
	// Reserve is called before a buffer of n bytes is made for a message that has
	// begun. An error ends the reading of messages.
	Reserve(n int) error
	// Progress is called where messages were read from such a buffer.
	Progress()
	// Take is called before a buffer of n bytes is made for answers.
	Take(n int)
	// Give is called once such a buffer is gone.
	Give(n int)
}

var (
	smallBuffers  = sync.Pool{New: func() any { return new([smallBuffer]byte) }}
	mediumBuffers = sync.Pool{New: func() any { return new([mediumBuffer]byte) }}
	largeBuffers  = sync.Pool{New: func() any { return new([largeBuffer]byte) }}
	hugeBuffers   = sync.Pool{New: func() any { return new([hugeBuffer]byte) }}
)

// sizeOf is the size of a buffer for n bytes.
func sizeOf(n int) int {
	for _, size := range [...]int{smallBuffer, mediumBuffer, largeBuffer, hugeBuffer} {
		if n <= size {
			return size
		}
	}
	return n
}

// borrow returns a buffer for n bytes, with arbitrary content.
func borrow(n int) []byte {
	switch n = sizeOf(n); n {
	case smallBuffer:
		return smallBuffers.Get().(*[smallBuffer]byte)[:]
	case mediumBuffer:
		return mediumBuffers.Get().(*[mediumBuffer]byte)[:]
	case largeBuffer:
		return largeBuffers.Get().(*[largeBuffer]byte)[:]
	case hugeBuffer:
		return hugeBuffers.Get().(*[hugeBuffer]byte)[:]
	}
	return make([]byte, n)
}

// giveBack takes a buffer from borrow, or nil. Nothing may refer to it any more.
func giveBack(b []byte) {
	switch b = b[:cap(b)]; len(b) {
	case smallBuffer:
		smallBuffers.Put((*[smallBuffer]byte)(b))
	case mediumBuffer:
		mediumBuffers.Put((*[mediumBuffer]byte)(b))
	case largeBuffer:
		largeBuffers.Put((*[largeBuffer]byte)(b))
	case hugeBuffer:
		hugeBuffers.Put((*[hugeBuffer]byte)(b))
	}
}

// idleSize is the size of the buffer to keep after a burst of that many bytes.
func idleSize(burst int) int {
	if burst > smallBuffer {
		return mediumBuffer
	}
	return smallBuffer
}

// nextSize returns the next size after the size of a buffer that was too small.
func nextSize(size int) int {
	switch {
	case size < smallBuffer:
		return smallBuffer
	case size < mediumBuffer:
		return mediumBuffer
	case size < largeBuffer:
		return largeBuffer
	case size < hugeBuffer:
		return hugeBuffer
	}
	return 2 * size
}
