package wire

import "sync"

// A connection keeps small buffers while it is idle and borrows larger ones
// while it is busy. A medium one stays as long as bursts fill it, so a
// pipelining client does not make its connection borrow for every burst; a
// large one goes back as soon as it is empty. What is larger still is garbage.
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

// idleSize is the buffer to keep after a burst of so many bytes.
func idleSize(burst int) int {
	if burst > smallBuffer {
		return mediumBuffer
	}
	return smallBuffer
}

// nextSize is the size above that of a buffer that turned out too small.
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
