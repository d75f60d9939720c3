// Package longwork lets work that takes long stand aside for what waits. The runtime lets a
// goroutine go on for 10 ms: a goroutine behind several such ones waits for all of them.
// Work within a transaction does not use it, since others wait for its end. A list of a store file
// does, although others wait for the file meanwhile: its pages are short.
package longwork

import (
	"runtime"
	"time"
)

// atOnce is for how long work goes on before others have their turns. A turn costs less than
// a hundredth of it.
const atOnce = 100 * time.Microsecond

// Work is work of many parts, by one goroutine.
type Work struct{ since time.Time }

// Part is called between two parts. It lets others go first if work has gone on for long.
func (w *Work) Part() {
	now := time.Now()
	if w.since.IsZero() {
		w.since = now
	}
	if now.Sub(w.since) >= atOnce {
		runtime.Gosched()
		w.since = time.Now()
	}
}
