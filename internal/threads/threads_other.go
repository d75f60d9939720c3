//go:build !linux

package threads

import "time"

func slice(time.Duration)         {}
func hasSlice(time.Duration) bool { return false }
