//go:build linux

package systemd_test

import (
	"strconv"
	"strings"
)

// What no restart mends is not tried again and again.
func badConfiguration(h *host) {
	h.fresh()
	h.do("systemctl", "start", service)
	h.write("/etc/kazahana/kazahanad.yaml", "644", "fallbck: none\n")
	pid := h.show(service, "MainPID")
	if o := h.try("systemctl", "reload", service); o.code == 0 {
		h.t.Error("a bad configuration was reloaded without an error")
	}
	h.logged("the configuration cannot be read again")
	if h.id(); h.show(service, "MainPID") != pid {
		h.t.Error("the refused reload has ended the daemon")
	}
	if o := h.try("systemctl", "restart", service); o.code == 0 {
		h.t.Error("a daemon with a bad configuration has started")
	}
	if state, n, code := h.show(service, "ActiveState"), h.show(service, "NRestarts"), h.show(service, "ExecMainStatus"); state != "failed" || n != "0" || code != "2" {
		h.t.Errorf("the service is %s, was restarted %s times, exit code %s", state, n, code)
	}
	if o := h.try("kazahanad", "doctor"); o.code != 1 || !found(o.out, "config fail") {
		h.t.Errorf("doctor says %+v", o)
	}
	h.logged("did you mean fallback")
	h.loggedAsErrors("did you mean fallback")
	// Each client has the start tried again, and is told why there is no ID.
	if o := h.as("app", "kazahanad", "id"); o.code != 1 || !strings.Contains(o.err, "its configuration is wrong") {
		h.t.Errorf("a client is told %+v", o)
	}
	// Clients that ask all the time use up no limit.
	const tries = 6
	h.do("systemd-run", "--unit=knocking", "--uid=app", "bash", "-c", "while :; do kazahanad id; done")
	h.eventually("the start was tried again and again", func() bool {
		return strings.Count(h.do("journalctl", "--no-pager", "-o", "cat", "-u", service), "did you mean fallback") >= tries
	})
	if state := h.show(socket, "ActiveState"); state != "active" {
		h.t.Errorf("the socket is %s", state)
	}
	if said := h.try("systemctl", "status", "--no-pager", service).out; !strings.Contains(said, "did you mean fallback") {
		h.t.Errorf("systemctl status says\n%s", said)
	}
	h.do("rm", "/etc/kazahana/kazahanad.yaml")
	h.do("systemctl", "restart", service)
	h.id()
	h.do("systemctl", "stop", "knocking")
	// Without a restart, the next request starts the daemon that was mended.
	h.write("/etc/kazahana/kazahanad.yaml", "644", "fallbck: none\n")
	h.try("systemctl", "restart", service)
	h.do("rm", "/etc/kazahana/kazahanad.yaml")
	h.id()
}

// An error that may pass never ends the tries, however long it takes, and the daemon needs
// no command once it has passed. Here the lease server has the port.
func errorThatPasses(h *host) {
	h.fresh()
	h.do("systemctl", "start", server)
	// A start every second would use this up; one every four seconds does not.
	h.dropIn(service, "passes", "[Unit]\nStartLimitIntervalSec=6\nStartLimitBurst=3\n[Service]\nEnvironment=KAZAHANA_ADMIN_LISTEN=127.0.0.1:7464\n")
	if o := h.try("systemctl", "restart", service); o.code == 0 {
		h.t.Error("the daemon has started without its admin listener")
	}
	const tries = 4
	h.eventually("it is tried again and again", func() bool {
		n, err := strconv.Atoi(h.show(service, "NRestarts"))
		return err == nil && n >= tries || h.show(service, "ActiveState") == "failed"
	})
	if state, result := h.show(service, "ActiveState"), h.show(service, "Result"); state == "failed" {
		h.t.Fatalf("systemd has given up: %s\n%s", result, h.journal())
	}
	if o := h.as("app", "kazahanad", "id"); o.code != 1 || !strings.Contains(o.err, "cannot start, and tries again") {
		h.t.Errorf("a client is told %+v", o)
	}
	h.do("systemctl", "stop", server)
	h.eventually("it runs by itself", func() bool { return h.show(service, "ActiveState") == "active" })
	h.id()
	h.do("rm", dropIns+"/passes.conf")
	h.do("systemctl", "daemon-reload")
	h.do("systemctl", "restart", service)
}
