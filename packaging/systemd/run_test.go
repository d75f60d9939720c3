//go:build linux

package systemd_test

import (
	"os"
	"regexp"
	"strings"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

// numberedProgram checks the variables that name it, reports that it is ready, and becomes a
// program of systemd's own that needs a socket from systemd.
const numberedProgram = `#!/bin/sh -e
for pid in "$LISTEN_PID" "$WATCHDOG_PID" "$SYSTEMD_EXEC_PID"; do test "$pid" = $$; done
systemd-notify --ready
exec /lib/systemd/systemd-socket-proxyd /run/kazahana/kazahanad.sock
`

// replicaNumber runs the unit of docs/replica-numbers.md with a program that gets its socket
// from systemd, reports to it, and is watched by it.
func replicaNumber(h *host) {
	page, err := os.ReadFile("../../docs/replica-numbers.md")
	must.Succeed(h.t, err)
	unit := regexp.MustCompile("(?s)```ini\n(.*?)```").FindSubmatch(page)
	if unit == nil || !strings.Contains(string(unit[1]), "/usr/bin/java -jar /opt/app.jar") {
		h.t.Fatal("docs/replica-numbers.md has no unit")
	}
	text := strings.Replace(string(unit[1]), "/usr/bin/java -jar /opt/app.jar", "/usr/local/bin/numbered", 1)
	h.write("/usr/local/bin/numbered", "755", numberedProgram)
	h.write("/etc/systemd/system/numbered@.service", "644", text)
	h.write("/etc/systemd/system/numbered@.socket", "644", "[Socket]\nListenStream=/run/numbered-%i.sock\n")
	h.dropIn("numbered@.service", "reports", "[Service]\nUser=app\nType=notify\nWatchdogSec=120s\n")
	h.do("systemctl", "start", "numbered@1.socket")
	if got := h.do("kazahanad", "id", "--socket", "/run/numbered-1.sock"); !regexp.MustCompile(`^[0-9]+$`).MatchString(got) {
		h.t.Errorf("through the program: %q", got)
	}
	const service = "numbered@1.service"
	h.eventually("systemd knows that the program is ready", func() bool { return h.show(service, "ActiveState") == "active" })
	h.do("systemctl", "stop", service, "numbered@1.socket")
	if result := h.show(service, "Result"); result != "success" {
		h.t.Errorf("after a stop the result is %s\n%s", result, h.do("journalctl", "--no-pager", "-o", "cat", "-u", service))
	}
}
