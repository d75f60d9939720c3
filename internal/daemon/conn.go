package daemon

import (
	"context"
	"errors"
	"net"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/generator"
	"github.com/kazahana/kazahana/internal/unixsock"
	"github.com/kazahana/kazahana/internal/wire"
)

// conn is one connection, served by one goroutine.
type conn struct {
	server *Server
	net    *net.UnixConn
	wire   *wire.ServerConn
	req    wire.Request
	ranges []generator.Range // reused from request to request
	until  time.Time         // the write deadline as set
}

func newConn(s *Server, nc *net.UnixConn) *conn {
	c := &conn{server: s, net: nc}
	c.wire = wire.NewServerConn(nc, (*patientWriter)(c))
	return c
}

// patientWriter writes with a deadline, which it moves seldom: setting one
// costs as much as parsing a request.
type patientWriter conn

func (w *patientWriter) Write(b []byte) (int, error) {
	if now := time.Now(); w.until.Sub(now) < writeTimeout/2 {
		w.until = now.Add(writeTimeout)
		if err := w.net.SetWriteDeadline(w.until); err != nil {
			return 0, err
		}
	}
	return w.net.Write(b)
}

// serve answers requests until the peer is done, is wrong, or the daemon
// stops.
func (c *conn) serve(ctx context.Context) {
	defer c.net.Close()
	for {
		if err := c.wire.Read(&c.req); err != nil {
			c.finish(err)
			return
		}
		c.server.handle(ctx, c)
		if !c.wire.Pending() && c.wire.Flush() != nil {
			return
		}
	}
}

// finish ends the connection after a failed read.
func (c *conn) finish(err error) {
	var parse *wire.ParseError
	if errors.As(err, &parse) {
		c.server.metrics.Requests("", string(wire.CodeParseError)).Inc()
		c.server.log.Debug("peer does not speak MessagePack-RPC", zap.Error(err))
		_ = c.wire.Refuse(err)
		// Unread bytes would turn the close into a reset, which may overtake
		// the answer.
		_ = c.net.CloseWrite()
		c.discard()
		return
	}
	_ = c.wire.Flush()
}

// discard reads what the peer still sends, up to a limit of bytes and time.
func (c *conn) discard() {
	_ = c.net.SetReadDeadline(time.Now().Add(refuseTimeout))
	var waste [4096]byte
	for left := wire.MaxMessage; left > 0; {
		n, err := c.net.Read(waste[:])
		if err != nil {
			return
		}
		left -= n
	}
}

// turnAway answers the peer's first request with the refusal, and closes.
func (c *conn) turnAway(refusal *wire.Error) {
	defer c.net.Close()
	_ = c.net.SetDeadline(time.Now().Add(refuseTimeout))
	for {
		if err := c.wire.Read(&c.req); err != nil {
			return
		}
		if c.req.Type == wire.TypeRequest {
			break
		}
	}
	c.server.metrics.Requests("", string(refusal.Code)).Inc()
	c.wire.ReplyError(c.req.ID, refusal)
	_ = c.wire.Flush()
}

// admit checks the peer's credentials, and returns why it may not connect.
func (s *Server) admit(nc *net.UnixConn) *wire.Error {
	if len(s.cfg.AllowUIDs) == 0 && len(s.cfg.AllowGIDs) == 0 {
		return nil
	}
	peer, err := unixsock.PeerOf(nc)
	if err != nil {
		s.log.Warn("connection refused: its peer is not known", zap.Error(err))
		return wire.Errorf(wire.CodePermissionDenied, "the peer's credentials cannot be read")
	}
	if slices.Contains(s.cfg.AllowUIDs, peer.UID) || slices.Contains(s.cfg.AllowGIDs, peer.GID) {
		return nil
	}
	s.log.Warn("connection refused: its peer is not allowed",
		zap.Int("pid", peer.PID), zap.Uint32("uid", peer.UID), zap.Uint32("gid", peer.GID))
	return wire.Errorf(wire.CodePermissionDenied,
		"user %d with group %d may not use this daemon: ask its operator to add one of them to allow_uids or allow_gids", peer.UID, peer.GID)
}

func overloadedConnections(most int) *wire.Error {
	return wire.Errorf(wire.CodeOverloaded, "all %d connections are in use: share a connection, or raise max_connections", most)
}
