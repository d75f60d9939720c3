//go:build !linux

package timeslice

import "time"

func ask(time.Duration) {}
