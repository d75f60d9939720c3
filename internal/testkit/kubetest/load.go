package kubetest

import (
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Load is what a server was asked until a moment, and whose processor time it took.
type Load struct {
	Answers        map[string]int // about leases, by method and status, as in "GET 200"
	Servers, Tests time.Duration  // the processor time of both servers, and of this process
}

var answersMetric = regexp.MustCompile(`(?m)^apiserver_request_total\{code="(\d+)".*resource="leases".*verb="(\w+)".*\} (\S+)$`)

// Load is the load so far.
func (r *Real) Load() Load {
	r.t.Helper()
	l := Load{Answers: map[string]int{}, Tests: processorTime(os.Getpid())}
	for _, pid := range r.programs {
		l.Servers += processorTime(pid)
	}
	for _, line := range answersMetric.FindAllSubmatch(r.must(http.MethodGet, "/metrics", nil), -1) {
		n, _ := strconv.ParseFloat(string(line[3]), 64) // a number, as the server writes it
		l.Answers[string(line[2])+" "+string(line[1])] += int(n)
	}
	return l
}

// Since is the load since an earlier one.
func (l Load) Since(earlier Load) Load {
	out := Load{Answers: map[string]int{}, Servers: l.Servers - earlier.Servers, Tests: l.Tests - earlier.Tests}
	for what, n := range l.Answers {
		if n > earlier.Answers[what] {
			out.Answers[what] = n - earlier.Answers[what]
		}
	}
	return out
}

// tick is the unit of processor times in /proc.
const tick = 10 * time.Millisecond

// processorTime is how much a process has used so far; 0 where the system does not say.
func processorTime(pid int) time.Duration {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(stat), ") ") // a program's name may have spaces
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(fields[11], 10, 64)
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * tick
}
