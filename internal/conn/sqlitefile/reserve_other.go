//go:build !linux

package sqlitefile

import "os"

// allocate does nothing where room cannot be had without a file's end moving.
func allocate(*os.File, int64) bool { return true }
