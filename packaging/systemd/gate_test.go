//go:build linux

package systemd_test

import (
	"regexp"
	"strings"
)

const (
	dropIns  = "/etc/systemd/system/kazahanad.service.d"
	noDropIn = "rm -r " + dropIns + "; systemctl daemon-reload"
)

// dropIn is the command that adds a line to the service, or a section of its own to the unit.
func dropIn(line string) string {
	return "mkdir -p " + dropIns + "; printf '[Service]\\n" + line + "\\n' >" + dropIns + "/x.conf; systemctl daemon-reload"
}

// gate breaks the host, and holds doctor's verdict to what a restart then does. The service
// is down and the socket is open, as before the first request.
func gate(h *host) {
	const states = "/var/lib/kazahana"
	for _, c := range []struct {
		name, broken, mended, code string
	}{
		{name: "nothing", broken: "true", mended: "true", code: "state ok"},
		{"state of root", "chown root " + states + "/state", "chown kazahana " + states + "/state", "state fail"},
		{"lock of root", "chown root " + states + "/lock", "chown kazahana " + states + "/lock", "state fail"},
		{"damaged state", "cp -p " + states + "/state /root/; echo >>" + states + "/state", "cp -p /root/state " + states, "state fail"},
		{"open live directory on another file system", "mkdir -p /srv/live; echo 'live_dir: /srv/live' >/etc/kazahana/kazahanad.yaml",
			"rm /etc/kazahana/kazahanad.yaml", "state fail"},
		{"configuration", "echo 'fallbck: none' >/etc/kazahana/kazahanad.yaml", "rm /etc/kazahana/kazahanad.yaml", "config fail"},
		{"configuration of root", "umask 077; echo 'fallback: none' >/etc/kazahana/kazahanad.yaml", "rm /etc/kazahana/kazahanad.yaml", "config fail"},
		{"a provider of a drop-in", dropIn("Environment=KAZAHANA_PROVIDER=ftp://x"), noDropIn, "provider fail"},
		{"a port of root", dropIn("Environment=KAZAHANA_ADMIN_LISTEN=127.0.0.1:80"), noDropIn, "listen fail"},
		{"no such user", dropIn("User=nosuchuser"), noDropIn, "account fail"},
		{"a group of its own", "groupadd more; install -g more -m 640 /dev/null /etc/kazahana/kazahanad.yaml; " + dropIn("SupplementaryGroups=more"),
			"rm /etc/kazahana/kazahanad.yaml; " + noDropIn + "; groupdel more", "config ok"},
	} {
		h.fresh()
		h.do("systemctl", "stop", service)
		h.do("systemctl", "start", socket)
		h.shell(c.broken)
		said := h.try("kazahanad", "doctor")
		if !found(said.out, c.code) {
			h.t.Errorf("%s: doctor does not say %s:\n%s%s", c.name, c.code, said.out, said.err)
		}
		starts := h.try("systemctl", "restart", service).code == 0
		if passes := said.code == 0; passes != starts {
			h.t.Errorf("%s: doctor's exit code is %d, and that the service starts is %v:\n%s", c.name, said.code, starts, said.out)
		}
		h.shell(c.mended)
		h.fresh()
		h.do("systemctl", "start", socket)
		h.do("systemctl", "restart", service)
		h.id()
	}
}

// found reports whether doctor says so: "state fail".
func found(said, finding string) bool {
	step, level, _ := strings.Cut(finding, " ")
	return regexp.MustCompile("(?m)^" + level + " +" + step + " ").MatchString(said)
}
