//go:build linux

package abuse

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/kazahana/kazahana/bench/report"
)

// result is what became of one attack.
type result struct {
	attack
	at                  aim
	users               bool
	memory              int64 // bytes that the server may use
	load                load
	before, peak, after int64 // bytes in memory
	charged             int64 // bytes that the control group was charged with at most; 0: not known
	disk                int64
	served              *served
	died, later         error
}

// promptly is the promise of the 99th percentile, on an idle machine. A request for an ID waits for
// nothing. The renewal of a lock at the lease server waits for the disk, and its client has seconds.
func (a aim) promptly() time.Duration {
	if a == server {
		return 50 * time.Millisecond
	}
	return 10 * time.Millisecond
}

// broken are the promises that the attack has broken, but for the speed.
func (r result) broken() (all []string) {
	if r.died != nil {
		return []string{"the server died: " + r.died.Error()}
	}
	add := func(yes bool, format string, args ...any) {
		if yes {
			all = append(all, fmt.Sprintf(format, args...))
		}
	}
	add(r.load.Idle > 0, "%d of %d attackers did nothing", r.load.Idle, r.attack.users)
	add(!r.enough(), "the attackers did too little to show anything")
	add(r.honest && r.load.Refused > 0, "honest clients were refused %d times, first by %s", r.load.Refused, r.load.Why)
	add(r.peak > r.memory, "RSS of %s MiB", report.MiB(float64(r.peak)))
	add(r.disk > diskLimit*int64(r.attack.users), "%s MiB on the disk", report.MiB(float64(r.disk)))
	// Without users of their own the attackers use up the innocent's share.
	if n := len(r.served.failed); n > 0 && r.users {
		add(true, "%d of %d calls failed, such as: %v", n, len(r.served.calls)+len(r.served.renewals)+len(r.served.news), r.served.failed[0])
	}
	add(r.later != nil, "afterwards: %v", r.later)
	return all
}

// enough reports whether the attackers did what shows something. What they should do at
// least is little beside what they do in a second on a busy machine.
func (r result) enough() bool {
	const (
		connections, requests = 100, 100
		bytes                 = 64 << 10
	)
	if r.quiet {
		return r.load.Dialed >= connections
	}
	return r.load.Asked >= requests || r.load.Sent >= bytes
}

// slow reports whether the innocent waited for longer than promised.
func (r result) slow() bool { return r.users && quantile(r.served.calls, 0.99) > r.at.promptly() }

// keeps reports whether the server still has much of the memory. How soon the runtime gives
// it back depends on the machine.
func (r result) keeps() bool { return r.after > r.before+r.memory/8 }

func (r result) verdict() string {
	switch {
	case len(r.broken()) > 0:
		return "BROKEN"
	case r.keeps():
		return "keeps"
	case r.slow():
		return "slow"
	}
	return "holds"
}

// String says what was put on the server.
func (l load) String() string {
	var parts []string
	for _, part := range []struct {
		n    int64
		what string
	}{{l.Connections, "conns"}, {l.Dialed, "made"}, {l.Asked, "requests"}, {l.Sent >> 20, "MiB"}} {
		if part.n > 0 && (part.what != "made" || part.n > 2*l.Connections) {
			parts = append(parts, fmt.Sprintf("%d %s", part.n, part.what))
		}
	}
	return strings.Join(parts, ", ")
}

const columns = "%-42s %-50s %4s %4s %5s %5s %4s  %5s %6s %6s %6s %6s  %s\n"

func printMethod(out io.Writer, f *field) {
	mib := report.Whole(float64(f.memory) / (1 << 20))
	where := "a control group of " + mib + " MiB for each server"
	if g, err := newGroup(f.memory); err != nil {
		where = fmt.Sprintf("no control group (%v): memory_limit is %s MiB, and the RSS is checked", err, mib)
	} else {
		g.remove()
	}
	whose := "attackers are processes of other users and addresses"
	if !f.users {
		whose = "attackers are processes of the same user (not root), so whether the innocent is served is shown, and not judged"
	}
	cores := fmt.Sprintf("the server and the innocent have core %d, and the attackers core %d: the table shows what the server lets attackers\n"+
		"         take of it, and not how the system shares a core", f.launch.Core, f.beside.Core)
	if !f.apart() {
		cores = "all share their processors, and attackers have the lowest priority"
	}
	if f.first {
		cores += ";\n         the innocent has the highest priority, as if its processor were its own"
	}
	fmt.Fprintf(out, "method   %s; %s;\n         %s; %v for each attack\n", where, whose, cores, f.plan.Duration)
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		fmt.Fprintf(out, "machine  load before the run: %s", load)
	}
	fmt.Fprint(out, "shown    RSS before, at its peak and after the attack; the control group's peak, with the kernel's buffers and the cache of files;\n"+
		"         files on the disk; all in MiB. p50, p99 and max of the innocent's NextID (on the lease server: of renewing a lock); max of\n"+
		"         renewing a lock, and of a new connection with its call, repeats included; all in ms. The rows called control attack nobody:\n"+
		"         busy processors show what this machine gives to a server that is left alone, and honest clients are refused nothing\n\n")
}

func printResult(out io.Writer, r result, first bool) error {
	if first {
		fmt.Fprintf(out, columns, "attack", "load", "RSS", "peak", "after", "group", "disk", "p50", "p99", "max", "lock", "new", "verdict")
	}
	mib := func(n int64) string { return report.Whole(float64(n) / (1 << 20)) }
	ms := func(all []time.Duration, q float64) string { return report.Milliseconds(float64(quantile(all, q))) }
	users := ""
	if r.attack.users > 1 {
		users = fmt.Sprintf(", %d users", r.attack.users)
	}
	s := r.served
	_, err := fmt.Fprintf(out, columns, r.name+users, r.load, mib(r.before), mib(r.peak), mib(r.after), mib(r.charged), mib(r.disk),
		ms(s.calls, 0.5), ms(s.calls, 0.99), ms(s.calls, 1), ms(s.renewals, 1), ms(s.news, 1), r.verdict())
	for _, why := range r.broken() {
		_, err = fmt.Fprintf(out, "  %s\n", why)
	}
	return err
}
