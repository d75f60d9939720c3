package doctor

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
)

// Unit are the facts about one of the daemon's units, in systemd's words.
type Unit struct {
	Name   string // "kazahanad.service"
	Load   string // "loaded", "masked", "not-found", ...
	Active string // "active", "inactive", "failed", "activating", ...
	File   string // "enabled", "disabled", ...
	Result string // of the last run: "success", "exit-code", "start-limit-hit", ...
	Status string // exit status of the last run

	User, Group          string   // of a service; "" = root
	Groups               []string // besides
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

func (u Unit) enabled() bool { return strings.HasPrefix(u.File, "enabled") }

// Units judges the daemon's units on a host that systemd manages. answers says that a daemon
// answers on the socket.
func (r *Report) Units(units []Unit, answers bool) {
	const step = "unit"
	before, wanted, up := len(*r), "", false
	for _, u := range units {
		up = up || u.Active == "active" || u.Active == "activating" || u.Active == "reloading"
		broken := u.Load != "loaded" && u.Load != "not-found"
		if broken || u.Active == "failed" || strings.HasSuffix(u.Result, "-limit-hit") {
			r.Fail(step, "Mend the cause, which systemctl status kazahanad names (masked: systemctl unmask); then systemctl reset-failed kazahanad.service kazahanad.socket, and systemctl restart kazahanad.socket kazahanad.",
				"%s is %s and %s (%s, status %s)", u.Name, u.Load, u.Active, u.Result, u.Status)
		} else if u.enabled() {
			wanted = u.Name
		}
	}
	switch {
	case len(*r) > before:
	case wanted != "" && !up:
		r.Fail(step, "Start it: systemctl start kazahanad.socket kazahanad.service.", "%s is enabled, and does not run", wanted)
	case wanted != "" || up:
		r.OK(step, "systemd runs the daemon, or starts it for the first request")
	case !answers && len(units) > 0 && units[0].Load == "loaded":
		r.Warn(step, "If the daemon should run: systemctl enable --now kazahanad.socket kazahanad.service.", "%s is installed, and neither enabled nor started", units[0].Name)
	}
}

// Account is a user with its groups, its own one first.
type Account struct {
	UID    int
	Groups []int
}

// Account is the user that the service runs as; known is false if there is none.
func (u Unit) Account() (who Account, known bool) {
	user := entry("passwd", u.User) // name, password, user, group
	if len(user) < 4 {
		return who, false
	}
	groups := []string{user[3]}
	if own := entry("group", u.Group); len(own) > 2 { // name, password, group
		groups = []string{own[2]}
	}
	groups = append(groups, entry("initgroups", u.User)...)
	for _, name := range u.Groups {
		if more := entry("group", name); len(more) > 2 {
			groups = append(groups, more[2])
		}
	}
	return Account{numbers(user[2:3])[0], numbers(groups)}, true
}

// entry returns the name services' entry of a user or a group, which may be in no file.
func entry(database, name string) []string {
	if name == "" {
		return nil
	}
	out, _ := exec.Command("getent", database, name).Output() // empty where it is not known
	return strings.FieldsFunc(string(out), func(r rune) bool { return strings.ContainsRune(": \n", r) })
}

// numbers leaves out texts that are no numbers.
func numbers(texts []string) (all []int) {
	for _, text := range texts {
		if n, err := strconv.Atoi(text); err == nil {
			all = append(all, n)
		}
	}
	return all
}

// unitNames are the daemon's units.
var unitNames = []string{"kazahanad.service", "kazahanad.socket"}

// ProbeUnits asks systemd for the daemon's units; none where systemd does not run, or
// does not answer.
func ProbeUnits(ctx context.Context) []Unit {
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return nil
	}
	args := append([]string{"show", "--property=Id,LoadState,ActiveState,UnitFileState,Result,ExecMainStatus,User,Group,SupplementaryGroups,AmbientCapabilities,DynamicUser,Environment,StateDirectory,RuntimeDirectory"}, unitNames...)
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
			Name: values["Id"], Load: values["LoadState"], Active: values["ActiveState"], File: values["UnitFileState"],
			Result: values["Result"], Status: values["ExecMainStatus"],
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

// credentials is where systemd puts a service's credentials, while it runs.
const credentials = "/run/credentials/"

// LacksCredential reports whether an error is that a credential is not there now.
func LacksCredential(err error) bool {
	missing, ok := errors.AsType[*fs.PathError](err)
	return ok && errors.Is(missing, fs.ErrNotExist) && strings.HasPrefix(missing.Path, credentials)
}
