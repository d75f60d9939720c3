package suite

import (
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strings"
)

// describeMachine says what the figures were measured on.
func describeMachine() string {
	read := func(path, otherwise string) string {
		text, err := os.ReadFile(path)
		if err != nil {
			return otherwise
		}
		return strings.TrimSpace(string(text))
	}
	processors := read("/proc/cpuinfo", "")
	model := "a processor without a name" // not every architecture tells it
	if m := regexp.MustCompile(`(?m)^model name\s*: (.*)$`).FindStringSubmatch(processors); m != nil {
		model = m[1]
	}
	cores := max(len(regexp.MustCompile(`(?m)^processor\s*:`).FindAllString(processors, -1)), runtime.NumCPU())
	load, _, _ := strings.Cut(read("/proc/loadavg", "unknown"), " ")
	return fmt.Sprintf("%s, %d cores, Linux %s, %s %s; load average before the run %s",
		model, cores, read("/proc/sys/kernel/osrelease", "unknown"), runtime.Version(), runtime.GOARCH, load)
}
