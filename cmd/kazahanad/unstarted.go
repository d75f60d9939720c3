package main

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/operator/systemd"
	"github.com/kazahana/kazahana/internal/wire"
)

const (
	// unstartedTime is how long a daemon that cannot start answers clients. Each
	// connection to the service manager's socket would start it again at once, and the
	// unit allows 30 starts in 60 s: with this pause, clients use up at most 20. After
	// exitFailure the service manager itself tries again, a second later. There the daemon
	// pauses without clients, too, so that the unit is tried until the error has passed.
	unstartedTime = 3 * time.Second
	// unstartedLook is how long it looks for the first client after the other exit codes.
	unstartedLook = 100 * time.Millisecond
	// unstartedPatience is how long a client may take for its request.
	unstartedPatience = time.Second
	// unstartedClients is how many it serves at the same time.
	unstartedClients = 64
)

// unstarted is told to clients in place of an answer, by the exit code. The cause
// itself may name paths and settings, and is for the operator.
var unstarted = map[int]string{
	exitFailure: "the daemon cannot start, and tries again: its operator finds the cause with systemctl status kazahanad, or in its log",
	exitUsage:   "the daemon cannot start, because its configuration is wrong: its operator finds the mistake with systemctl status kazahanad, or in its log",
	exitState:   "the daemon cannot start, because it cannot use its state directory: its operator finds the cause with systemctl status kazahanad, or in its log",
}

// answerUnstarted answers the clients that wait at the service manager's socket. If
// none does, and no restart follows by itself, it returns.
func (s *system) answerUnstarted(code int, cause error) {
	if s.socket == nil { // the command line is wrong
		s.socket, _ = systemd.Socket()
	}
	if s.socket == nil || unstarted[code] == "" {
		return
	}
	l := s.socket
	_, _ = systemd.Notify(systemd.Status("cannot start: " + cause.Error()))
	defer context.AfterFunc(s.ctx, func() { _ = l.SetDeadline(time.Unix(1, 0)) })()
	var serving sync.WaitGroup
	defer serving.Wait()
	free := make(chan struct{}, unstartedClients)
	look, end := unstartedLook, time.Now().Add(unstartedTime)
	if code == exitFailure {
		look = unstartedTime
	}
	_ = l.SetDeadline(time.Now().Add(look))
	for s.ctx.Err() == nil {
		nc, err := l.Accept()
		if err != nil {
			return
		}
		_ = l.SetDeadline(end)
		free <- struct{}{}
		serving.Go(func() {
			defer func() { <-free }()
			defer nc.Close()
			refuse(nc, wire.Errorf(wire.CodeStartFailed, "%s", unstarted[code]))
		})
	}
}

// refuse answers the first request of a connection.
func refuse(nc net.Conn, refusal *wire.Error) {
	_ = nc.SetDeadline(time.Now().Add(unstartedPatience))
	c := wire.NewServerConn(nc, nc)
	var req wire.Request
	for c.Read(&req) == nil {
		if req.Type == wire.TypeRequest {
			c.ReplyError(req.ID, refusal)
			_ = c.Flush()
			return
		}
	}
}
