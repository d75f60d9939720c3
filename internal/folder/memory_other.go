//go:build !linux

package folder

// InMemory is false: macOS has no file system in memory by default.
func InMemory(string) bool { return false }
