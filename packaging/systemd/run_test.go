//go:build linux

package systemd_test

import (
	"os"
	"regexp"
	"strings"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

// numberedProgram is watched by systemd, if no variable says that another process is, and reports
// that it is ready.
const numberedProgram = `#!/bin/sh -e
test -n "$WATCHDOG_USEC"
test -z "$WATCHDOG_PID"
systemd-notify --ready
exec sleep infinity
`

// replicaNumber runs the unit of docs/replica-numbers.md with a program that reports to systemd
// and is watched by it.
func replicaNumber(h *host) {
	page, err := os.ReadFile("../../docs/replica-numbers.md")
	must.Succeed(h.t, err)
	unit := regexp.MustCompile("(?s)```ini\n(.*?)```").FindSubmatch(page)
	if unit == nil || !strings.Contains(string(unit[1]), "/usr/bin/java -jar /opt/app.jar") {
		h.t.Fatal("docs/replica-numbers.md has no unit")
	}
	text := strings.Replace(string(unit[1]), "/usr/bin/java -jar /opt/app.jar", "/usr/local/bin/numbered", 1)
	const service = "numbered@1.service"
	h.write("/usr/local/bin/numbered", "755", numberedProgram)
	h.write("/etc/systemd/system/numbered@.service", "644", text)
	h.dropIn("numbered@.service", "reports", "[Service]\nUser=app\nType=notify\nWatchdogSec=120s\n")
	h.do("systemctl", "start", service)
	h.eventually("systemd knows that the program is ready", func() bool { return h.show(service, "ActiveState") == "active" })
	h.do("systemctl", "stop", service)
	if result := h.show(service, "Result"); result != "success" {
		h.t.Errorf("after a stop the result is %s\n%s", result, h.do("journalctl", "--no-pager", "-o", "cat", "-u", service))
	}
}
