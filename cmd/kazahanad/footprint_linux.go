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

// dropBinaryPages tells the kernel that the pages of the binary which are mapped
// and cannot be written need not be in memory. It is a hint: where it fails,
// nothing is lost.
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
		// Only what the file still has as it is in memory: a loader may have
		// changed pages that cannot be written now.
		if code := mode == "r-xp"; !code && (mode != "r--p" || !fixed) {
			continue
		}
		// By the number of the system call: x/sys takes a slice, and this memory is not Go's.
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED)
	}
}

// changedByNobody reports whether the binary is in memory as it is in its file,
// but for what can be written: it is loaded at a fixed address, and nothing is
// relocated and then protected (PT_GNU_RELRO), as with an external linker.
func changedByNobody(path string) bool {
	file, err := elf.Open(path)
	if err != nil {
		return false
	}
	defer file.Close()
	relocated := slices.ContainsFunc(file.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_GNU_RELRO })
	return file.Type == elf.ET_EXEC && !relocated
}
