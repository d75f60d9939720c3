// Package doctor has what "kazahanad doctor" looks at beside the steps of a start: the
// host's clock and file systems, systemd's units, and the way to a lease server. It only reads.
// Slow troubles, such as the end of a layout or of a certificate, are left to the alerts.
package doctor

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"golang.org/x/sys/unix"
)

// Level is how bad a finding is.
type Level string

// The levels, from good to bad.
const (
	OK      Level = "ok"
	Unknown Level = "unknown" // it could not be examined
	Warn    Level = "warn"    // it works, but not well, or not for long
	Fail    Level = "fail"    // the daemon does not start or gets no lease, or a promise is broken
)

var levels = []Level{OK, Unknown, Warn, Fail}

// Finding is the outcome of a step.
type Finding struct {
	Step  string `json:"step"`
	Level Level  `json:"level"`
	Says  string `json:"says"`         // the finding, with names and numbers
	Do    string `json:"do,omitempty"` // what to do about it
}

// Report are the findings of one run.
type Report []Finding

// OK adds that a step works.
func (r *Report) OK(step, format string, args ...any) { r.add(step, OK, "", format, args...) }

// Unknown, Warn and Fail add a fault, and what to do about it.
func (r *Report) Unknown(step, do, format string, args ...any) {
	r.add(step, Unknown, do, format, args...)
}

// Warn is described at Unknown.
func (r *Report) Warn(step, do, format string, args ...any) { r.add(step, Warn, do, format, args...) }

// Fail is described at Unknown.
func (r *Report) Fail(step, do, format string, args ...any) { r.add(step, Fail, do, format, args...) }

func (r *Report) add(step string, level Level, do, format string, args ...any) {
	*r = append(*r, Finding{step, level, strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; "), do})
}

// Of is the worst level of a step, OK if nothing is known of it, and the worst of all for "".
func (r Report) Of(step string) Level {
	worst := 0
	for _, f := range r {
		if step == "" || f.Step == step {
			worst = max(worst, slices.Index(levels, f.Level))
		}
	}
	return levels[worst]
}

// Print writes the findings for people.
func (r Report) Print(out io.Writer) error {
	counts := map[Level]int{}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, f := range r {
		counts[f.Level]++
		fmt.Fprintf(w, "%s\t%s\t%s\n", f.Level, f.Step, f.Says)
		if f.Do != "" {
			fmt.Fprintf(w, "\t\t-> %s\n", f.Do)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "\n%d ok, %d unknown, %d warn, %d fail\n", counts[OK], counts[Unknown], counts[Warn], counts[Fail])
	return err
}

// roomNeeded is the free space without which a state directory or a store cannot be made.
const roomNeeded = 4 << 20

// Room judges the free space where a path is, or will be once it exists, and describes it.
func (r *Report) Room(step, path string) string {
	var st unix.Statfs_t
	for at := path; unix.Statfs(at, &st) != nil; at = filepath.Dir(at) {
		if at == filepath.Dir(at) {
			return "room is not known"
		}
	}
	free := uint64(st.Bavail) * uint64(st.Bsize)
	if free < roomNeeded {
		r.Fail(step, "Free some space on that file system.", "%s has %d KiB free", path, free>>10)
	}
	return fmt.Sprintf("%d MiB free", free>>20)
}

// Scope judges how far the provider's promise reaches. scope is provider.Info's.
func (r *Report) Scope(scope, provider string, inPod bool) {
	const step = "scope"
	switch {
	case scope == "shared":
		r.OK(step, "%s coordinates all hosts that use it", provider)
	case scope == "host" && inPod:
		r.Fail(step, "Name a provider that all pods share: kubernetes:, http(s)://, postgres://, redis:// or etcd://.", "%s coordinates the daemons that use this one file, and every pod has its own", provider)
	case scope == "host":
		r.OK(step, "%s coordinates the daemons of this host; a host or a container with a file of its own makes the same IDs", provider)
	case scope == "none":
		r.Warn(step, "Name a provider, unless IDs that only chance keeps apart will do.", "there is no provider: every ID is a fallback ID")
	default:
		r.Warn(step, "Make sure by other means that no two daemons have the same machine ID, or name a provider that coordinates.", "%s does not coordinate its users", provider)
	}
}
