package main

import (
	"bufio"
	"debug/elf"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// dropBinaryPages tells the kernel that the binary's read-only pages need not stay
// in memory. It is a hint: a failure does no harm.
func dropBinaryPages() {
	self, err := os.Executable()
	if err != nil {
		return
	}
	fixed := changedByNobody(self)
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
		// Only pages that are as in the file: a loader may have changed pages that
		// are read-only now.
		if code := mode == "r-xp"; !code && (mode != "r--p" || !fixed) {
			continue
		}
		// A raw system call: x/sys wants a slice, and this memory is not Go's.
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED)
	}
}

// changedByNobody reports whether the read-only pages in memory are those of the
// file: the binary is loaded at a fixed address, and nothing is relocated and then
// protected (PT_GNU_RELRO), as an external linker does.
func changedByNobody(path string) bool {
	file, err := elf.Open(path)
	if err != nil {
		return false
	}
	defer file.Close()
	relocated := slices.ContainsFunc(file.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_GNU_RELRO })
	return file.Type == elf.ET_EXEC && !relocated
}
