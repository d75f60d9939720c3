package doctor

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"regexp"
	"strings"
)

// Unit are the facts about one of the daemon's units, in systemd's words.
type Unit struct {
	Name                 string // "kazahanad.service"
	Load                 string // "loaded", "masked", "not-found", ...
	User, Group          string // of a service; "" = root
	Groups               []string
	Capabilities         []string // that the service's user has: "cap_net_bind_service"
	Dynamic              bool     // the user is there while the service runs
	StateDir, RuntimeDir []string // of a service: names below /var/lib and /run
	Environment          []string // of a service: NAME=VALUE
}

// Environ is what systemd tells the service: its settings and its directories.
func (u Unit) Environ() (env []string) {
	for _, one := range u.Environment {
		if strings.HasPrefix(one, "KAZAHANA_") {
			env = append(env, one)
		}
	}
	for _, d := range []struct {
		variable, below string
		names           []string
	}{{"STATE_DIRECTORY", "/var/lib/", u.StateDir}, {"RUNTIME_DIRECTORY", "/run/", u.RuntimeDir}} {
		if len(d.names) > 0 {
			env = append(env, d.variable+"="+d.below+strings.Join(d.names, ":"+d.below))
		}
	}
	return env
}

// Service is the daemon's service, if systemd has it loaded.
func Service(units []Unit) (u Unit, ok bool) { return loaded(units, unitNames[0]) }

// OpensSocket reports whether systemd opens the daemon's socket.
func OpensSocket(units []Unit) bool {
	_, ok := loaded(units, unitNames[1])
	return ok
}

func loaded(units []Unit, name string) (Unit, bool) {
	for _, u := range units {
		if u.Name == name && u.Load == "loaded" {
			return u, true
		}
	}
	return Unit{}, false
}

// unitNames are the daemon's units.
var unitNames = []string{"kazahanad.service", "kazahanad.socket"}

// ProbeUnits asks systemd for the daemon's units; none where systemd does not run, or
// does not answer.
func ProbeUnits(ctx context.Context) []Unit {
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return nil
	}
	args := append([]string{"show", "--property=Id,LoadState,User,Group,SupplementaryGroups,AmbientCapabilities,DynamicUser,Environment,StateDirectory,RuntimeDirectory"}, unitNames...)
	out, err := exec.CommandContext(ctx, "systemctl", args...).Output()
	if err != nil {
		return nil
	}
	return parseUnits(string(out))
}

// parseUnits reads blocks of KEY=VALUE lines, one for each unit.
func parseUnits(text string) (units []Unit) {
	for block := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		values := map[string]string{}
		for line := range strings.Lines(block) {
			if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
				values[key] = value
			}
		}
		units = append(units, Unit{
			Name: values["Id"], Load: values["LoadState"],
			User: values["User"], Group: values["Group"], Groups: strings.Fields(values["SupplementaryGroups"]),
			Capabilities: strings.Fields(values["AmbientCapabilities"]), Dynamic: values["DynamicUser"] == "yes", Environment: splitWords(values["Environment"]),
			StateDir: strings.Fields(values["StateDirectory"]), RuntimeDir: strings.Fields(values["RuntimeDirectory"]),
		})
	}
	return units
}

var (
	// listed is a word of a list as systemctl prints it: one with blanks and the like is in
	// quotes, "..." or $'...'.
	listed  = regexp.MustCompile(`"((?:\\.|[^"\\])*)"|\$'((?:\\.|[^'\\])*)'|\S+`)
	escaped = regexp.MustCompile(`\\(.)`)
)

func splitWords(text string) (words []string) {
	for _, m := range listed.FindAllStringSubmatch(text, -1) {
		words = append(words, cmp.Or(escaped.ReplaceAllString(m[1]+m[2], "$1"), m[0]))
	}
	return words
}

// LacksCredential reports whether an error is that a credential is not there now.
func LacksCredential(err error) bool {
	missing, ok := errors.AsType[*fs.PathError](err)
	return ok && errors.Is(missing, fs.ErrNotExist) && strings.HasPrefix(missing.Path, "/run/credentials/")
}
