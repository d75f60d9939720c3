package tracing

import "time"

// SetCloseTimeout sets closeTimeout, and returns the old value.
func SetCloseTimeout(d time.Duration) (was time.Duration) {
	was, closeTimeout = closeTimeout, d
	return was
}
