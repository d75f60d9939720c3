package wire

import "sync"

// A connection keeps small buffers while it is idle and borrows larger ones while it is
// busy. It keeps a medium one as long as bursts fill it, so that a pipelining client
// does not cause a borrow for every burst; a large one goes back as soon as it is
// empty. Even larger ones are left to the garbage collector.
const (
	smallBuffer  = 256
	mediumBuffer = 4 << 10
	largeBuffer  = 64 << 10
)

var (
	smallBuffers  = sync.Pool{New: func() any { return new([smallBuffer]byte) }}
	mediumBuffers = sync.Pool{New: func() any { return new([mediumBuffer]byte) }}
	largeBuffers  = sync.Pool{New: func() any { return new([largeBuffer]byte) }}
)

// borrow returns a buffer of at least n bytes, with arbitrary content.
func borrow(n int) []byte {
	switch {
	case n <= smallBuffer:
		return smallBuffers.Get().(*[smallBuffer]byte)[:]
	case n <= mediumBuffer:
		return mediumBuffers.Get().(*[mediumBuffer]byte)[:]
	case n <= largeBuffer:
		return largeBuffers.Get().(*[largeBuffer]byte)[:]
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
	}
}

// idleSize is the size of the buffer to keep after a burst of that many bytes.
func idleSize(burst int) int {
	if burst > smallBuffer {
		return mediumBuffer
	}
	return smallBuffer
}

// nextSize is the next size after that of a buffer that was too small.
func nextSize(size int) int {
	switch {
	case size < smallBuffer:
		return smallBuffer
	case size < mediumBuffer:
		return mediumBuffer
	case size < largeBuffer:
		return largeBuffer
	}
	return 2 * size
}
