//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "bench: runs on Linux only: it needs processes that end with their parent, and one core for all")
	os.Exit(1)
}
