//go:build linux

package ids

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
	m := machine{cpu: cpuModel(), kernel: "unknown", load: "unknown", cores: onlineCores()}
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

// processorInfo are the values that Linux tells of the processors under a key.
func processorInfo(key string) (values []string) {
	file, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return nil
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if k, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(k) == key {
			values = append(values, strings.TrimSpace(value))
		}
	}
	return values
}

// onlineCores counts also those that this process may not use.
func onlineCores() int {
	return max(len(processorInfo("processor")), runtime.NumCPU())
}

// cpuModel is what Linux calls the processor; not every architecture does.
func cpuModel() string {
	if names := processorInfo("model name"); len(names) > 0 {
		return names[0]
	}
	return "a processor without a name"
}
