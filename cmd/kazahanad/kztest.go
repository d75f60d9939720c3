//go:build kztest

package main

import (
	"bufio"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/kazahana/kazahana/internal/clock"
)

// shiftedClock is the system's clock with its wall time moved.
type shiftedClock struct {
	clock.System
	shift atomic.Int64 // nanoseconds
}

// Wall implements clock.Source.
func (c *shiftedClock) Wall() int64 { return c.System.Wall() + c.shift.Load() }

// init gives the daemon of a test another clock. KZTEST_CLOCK is how
// far the clock is off. Each line on standard input is another duration; "ok" on
// standard output says that the clock has it.
func init() {
	text, found := os.LookupEnv("KZTEST_CLOCK")
	if !found {
		return
	}
	c := &shiftedClock{}
	wallSource = c
	set := func(text string) {
		shift, err := time.ParseDuration(text)
		if err != nil {
			panic(err)
		}
		c.shift.Store(int64(shift))
	}
	set(text)
	go func() {
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			set(lines.Text())
			// The daemon looks at the wall clock every 0.1 ms: a request that comes after
			// this answer sees the step.
			time.Sleep(time.Millisecond)
			fmt.Println("ok")
		}
	}()
}
