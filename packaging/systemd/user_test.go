//go:build linux

package systemd_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// TestUserUnit runs the unit of docs/systemd.md under the service manager of one
// user: its lease survives a kill, and a stop without a provider.
func TestUserUnit(t *testing.T) {
	t.Parallel()
	ring.Deep(t)
	page, err := os.ReadFile("../../docs/systemd.md")
	if err != nil {
		t.Fatal(err)
	}
	match := regexp.MustCompile("(?s)```ini\n# ~(/.config/systemd/user/kazahanad.service)\n(.*?)```").FindSubmatch(page)
	if match == nil {
		t.Fatal("docs/systemd.md has no unit for one user")
	}
	h := boot(t, stage(t))
	h.do("systemd-sysusers")
	uid := h.do("id", "-u", "stranger")
	home, run := "/home/stranger", "/run/user/"+uid
	h.do("install", "-d", "-o", "stranger", "-m", "700", home, run)
	h.write(home+string(match[1]), "644", string(match[2]))
	h.do("chown", "-R", "stranger", home)
	// What pam_systemd and logind do for a login.
	h.do("systemd-run", "--unit=manager", "--uid=stranger", "-p", "Type=notify", "-p", "Delegate=yes",
		"-E", "HOME="+home, "-E", "XDG_RUNTIME_DIR="+run, "/lib/systemd/systemd", "--user")
	user := func(args ...string) outcome {
		t.Helper()
		return h.as("stranger", append([]string{"env", "HOME=" + home, "XDG_RUNTIME_DIR=" + run}, args...)...)
	}
	must := func(args ...string) string {
		t.Helper()
		o := user(args...)
		if o.code != 0 {
			t.Fatalf("%v: %+v\n%s", args, o, user("systemctl", "--user", "status", "kazahanad").out)
		}
		return o.out
	}
	must("systemctl", "--user", "enable", "--now", "kazahanad")
	must("kazahanad", "id", "--regular-only")
	status := must("kazahanad", "status", "--json")
	for _, want := range []string{run + "/kazahana/kazahanad.sock", run + "/kazahana-live/", home + "/.local/state/kazahana", `"survives_kill": true`} {
		if !strings.Contains(status, want) {
			t.Errorf("status lacks %s: %s", want, status)
		}
	}
	machine := func() string {
		return regexp.MustCompile(`"machine_id": \d+`).FindString(user("kazahanad", "status", "--json").out)
	}
	before := machine()
	// Without its provider, which is a file: another thing has its name.
	must("mv", home+"/.local/state/kazahana/leases.db", home+"/elsewhere.db")
	must("mkdir", home+"/.local/state/kazahana/leases.db")
	must("systemctl", "--user", "kill", "-s", "KILL", "kazahanad")
	h.eventually("the lease survives a kill", func() bool { return machine() == before })
	must("systemctl", "--user", "restart", "kazahanad")
	if after := machine(); before == "" || after != before {
		t.Errorf("after a restart %s, before %s", after, before)
	}
	must("kazahanad", "id", "--regular-only")
	must("systemctl", "--user", "stop", "kazahanad")
	if o := user("test", "-d", run+"/kazahana-live"); o.code != 0 {
		t.Error("the live directory is gone after a stop")
	}
}
