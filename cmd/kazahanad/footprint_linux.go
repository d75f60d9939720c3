package main

import (
	"bufio"
	"debug/elf"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// dropBinaryPages tells the kernel that the pages of the binary which are mapped
// and cannot be written need not be in memory. It is a hint: where it fails,
// nothing is lost.
func dropBinaryPages() {
	self, err := os.Executable()
	if err != nil {
		return
	}
	fixed := loadedAtFixedAddress(self)
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return
	}
	defer maps.Close()
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		var from, to uintptr
		var mode string
		if !strings.HasSuffix(lines.Text(), " "+self) {
			continue
		}
		if _, err := fmt.Sscanf(lines.Text(), "%x-%x %s", &from, &to, &mode); err != nil {
			continue
		}
		// Only what the file still has as it is in memory. In a binary that can be
		// loaded anywhere, the loader has changed pages that cannot be written now.
		if code := mode == "r-xp"; !code && (mode != "r--p" || !fixed) {
			continue
		}
		// By the number of the system call: x/sys takes a slice, and this memory is not Go's.
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED)
	}
}

// loadedAtFixedAddress reports whether the binary says so of itself.
func loadedAtFixedAddress(path string) bool {
	file, err := elf.Open(path)
	if err != nil {
		return false
	}
	defer file.Close()
	return file.Type == elf.ET_EXEC
}
