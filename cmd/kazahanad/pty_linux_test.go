package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// ptyNumber unlocks the other end of a pseudo terminal, and returns its number.
func ptyNumber(f *os.File) (int, error) {
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		return 0, err
	}
	return unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPTN)
}
