//go:build !linux

package doctor

// As runs the probe. Only on Linux can a thread have rights of its own.
func As(_, _ int, probe func()) { probe() }
