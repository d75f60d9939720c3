package main

import (
	"github.com/kazahana/kazahana/internal/daemon"
	"github.com/kazahana/kazahana/internal/operator/systemd"
	"github.com/kazahana/kazahana/internal/wire"
)

// unstarted is told to clients in place of an answer, by the exit code. The cause
// itself may name paths and settings, and is for the operator.
var unstarted = map[int]string{
	exitFailure: "the daemon cannot start, and tries again: its operator finds the cause with systemctl status kazahanad, or in its log",
	exitUsage:   "the daemon cannot start, because its configuration is wrong: its operator finds the mistake with systemctl status kazahanad, or in its log",
	exitState:   "the daemon cannot start, because it cannot use its state directory: its operator finds the cause with systemctl status kazahanad, or in its log",
}

// answerUnstarted answers the clients that wait at the service manager's socket.
func (s *system) answerUnstarted(code int, cause error) {
	if s.socket == nil { // the command line is wrong
		s.socket, _ = systemd.Socket()
	}
	if s.socket == nil || unstarted[code] == "" {
		return
	}
	_, _ = systemd.Notify(systemd.Status("cannot start: " + cause.Error()))
	daemon.AnswerUnstarted(s.ctx, s.socket, code == exitFailure, wire.Errorf(wire.CodeStartFailed, "%s", unstarted[code]))
}
