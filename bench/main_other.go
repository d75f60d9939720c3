//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "bench: needs Linux: it pins processes to a core and makes its system calls directly")
	os.Exit(1)
}
