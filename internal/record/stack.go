package record

import "runtime"

// stackOfCall is about how much of a goroutine's stack a call of a Store takes, with its caller.
const stackOfCall = 8 << 10

// MakeRoom is for a goroutine that has begun, and will call a Store. It makes its stack large enough
// at once. Otherwise the runtime does so step by step during the call, and moves more frames each
// time: that took a tenth of the time of a daemon that has a goroutine for each call.
//
//go:noinline
func MakeRoom() {
	var room [stackOfCall]byte
	runtime.KeepAlive(&room)
}
