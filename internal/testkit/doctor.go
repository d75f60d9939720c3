package testkit

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/operator/doctor"
)

// Diagnosis is what doctor --json said.
type Diagnosis struct {
	T        *testing.T
	Code     int
	Worst    doctor.Level
	Findings []doctor.Finding
}

// Examined runs doctor with further variables.
func (s *Site) Examined(env []string, args ...string) *Diagnosis {
	s.T.Helper()
	return s.ExaminedBy(s.Command(append([]string{"doctor", "--json"}, args...)...), env)
}

func (s *Site) ExaminedBy(cmd *exec.Cmd, env []string) *Diagnosis {
	s.T.Helper()
	cmd.Env = s.Environment(append([]string{"KAZAHANA_SOCKET=" + s.Socket, "KAZAHANA_STATE_DIR=" + s.State, "KAZAHANA_CONFIG=none"}, env...)...)
	o := RunCommand(s.T, cmd)
	if strings.Contains(o.Stdout+o.Stderr, SecretInURL) {
		s.T.Errorf("a password is shown: %+v", o)
	}
	d := &Diagnosis{T: s.T, Code: o.Code}
	DecodeJSON(s.T, o.Stdout, d)
	if failed := d.Worst == doctor.Fail; o.Stderr != "" || (o.Code == 1) != failed || (o.Code == 0) == failed {
		s.T.Errorf("the worst is %s: exit code %d, stderr %q", d.Worst, o.Code, o.Stderr)
	}
	return d
}

const SecretInURL = "hunter2hunter2"

// Has checks that each of the steps has a finding of that level, as in "state fail". A step that
// begins with "no " must not.
func (d *Diagnosis) Has(findings ...string) {
	d.T.Helper()
	for _, want := range findings {
		want, absent := strings.CutPrefix(want, "no ")
		if slices.ContainsFunc(d.Findings, func(f doctor.Finding) bool { return f.Step+" "+string(f.Level) == want }) == absent {
			d.T.Errorf("%s: present %v, want the opposite: %+v", want, absent, d.Findings)
		}
	}
}
