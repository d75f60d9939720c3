package doctor

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Account is a user with its groups, its own one first. They are empty if they are not known.
type Account struct {
	UID    int
	Groups []int
}

// AccountOf is a process's, as far as Linux tells its groups.
func AccountOf(pid, uid int) Account {
	who := Account{UID: uid}
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	fields := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		name, rest, _ := strings.Cut(line, ":")
		fields[name] = strings.Fields(rest)
	}
	if own := fields["Gid"]; len(own) > 1 { // real, effective, saved, of files
		who.Groups = numbers(append(own[1:2], fields["Groups"]...))
	}
	return who
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

// handedOn are the variables of this process that the daemon's user may see: that user can read all
// that its process gets. They are what a start reads, or begin with what is followed by a star.
var handedOn = []string{
	"KAZAHANA_*", "XDG_*", "OTEL_*", "KUBERNETES_SERVICE_*", "KUBECONFIG", "STATE_DIRECTORY", "RUNTIME_DIRECTORY", "HOME", "PATH", "TZ", "LANG", "LC_*",
	"SSL_CERT_*", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
}

// HandedOn leaves out what the account need not see of an environment.
func HandedOn(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return !slices.ContainsFunc(handedOn, func(form string) bool {
			begin, open := strings.CutSuffix(form, "*")
			return name == form || open && strings.HasPrefix(name, begin)
		})
	})
}

// Again is this program once more, with the rights of the account, which only root can give it.
func (who Account) Again(ctx context.Context, args, env []string) (*exec.Cmd, error) {
	path, err := os.Executable()
	if err == nil && len(who.Groups) == 0 {
		err = fmt.Errorf("the groups of user %d are not known", who.UID)
	}
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	as := &syscall.Credential{Uid: uint32(who.UID), Gid: uint32(who.Groups[0])}
	for _, group := range who.Groups {
		as.Groups = append(as.Groups, uint32(group))
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as, Setsid: true} // and without root's terminal
	// Pipes and not root's terminal, which that user could read.
	cmd.Env, cmd.Stdout, cmd.Stderr = HandedOn(env), struct{ io.Writer }{os.Stdout}, struct{ io.Writer }{os.Stderr}
	return cmd, nil
}
