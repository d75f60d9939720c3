//go:build linux

package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// machine describes what the figures were measured on.
type machine struct {
	cpu, kernel, load string
	cores             int
}

func describeMachine() machine {
	m := machine{cpu: cpuModel(), kernel: "unknown", load: "unknown", cores: runtime.NumCPU()}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		m.kernel = unix.ByteSliceToString(name.Sysname[:]) + " " + unix.ByteSliceToString(name.Release[:])
	}
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.load, _, _ = strings.Cut(string(text), " ")
	}
	return m
}

func (m machine) String() string {
	return fmt.Sprintf("%s, %d cores, %s, %s %s; load average before the run %s",
		m.cpu, m.cores, m.kernel, runtime.Version(), runtime.GOARCH, m.load)
}

// cpuModel is what Linux calls the processor; not every architecture does.
func cpuModel() string {
	file, err := os.Open("/proc/cpuinfo")
	if err == nil {
		defer file.Close()
		for lines := bufio.NewScanner(file); lines.Scan(); {
			if key, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(key) == "model name" {
				return strings.TrimSpace(value)
			}
		}
	}
	return "a processor without a name"
}
