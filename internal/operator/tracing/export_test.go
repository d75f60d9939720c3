package tracing

import "time"

// SetCloseTimeout sets closeTimeout, and returns what it was.
func SetCloseTimeout(d time.Duration) (was time.Duration) {
	was, closeTimeout = closeTimeout, d
	return was
}
