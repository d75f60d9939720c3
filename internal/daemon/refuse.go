package daemon

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/unixsock"
	"github.com/kazahana/kazahana/internal/wire"
)

// admit counts a connection, or returns why its peer may not connect.
func (s *Server) admit(a *account) *wire.Error {
	limits, peer := s.limits.Load(), a.peer
	switch {
	case a.user.from.IsValid(), limits.allow(peer): // a network tells no credentials
		return a.admit()
	case peer == nil:
		s.refusalLog.Warn("connection refused: its peer is not known")
	default:
		s.refusalLog.Warn("connection refused: its peer is not allowed",
			zap.Int("pid", peer.PID), zap.Uint32("uid", peer.UID), zap.Uint32("gid", peer.GID), zap.Bool("unmapped", peer.UnmappedUID))
	}
	return limits.refusal(peer)
}

// allow reports whether the peer is allowed by name. A number that stands for users of other
// namespaces names none.
func (l *Limits) allow(peer *unixsock.Peer) bool {
	return len(l.AllowUIDs)+len(l.AllowGIDs) == 0 || peer != nil &&
		(!peer.UnmappedUID && slices.Contains(l.AllowUIDs, peer.UID) || !peer.UnmappedGID && slices.Contains(l.AllowGIDs, peer.GID) ||
			slices.ContainsFunc(peer.Groups, func(gid uint32) bool { return slices.Contains(l.AllowGIDs, gid) }))
}

// refusal is the error of a peer that is not allowed.
func (l *Limits) refusal(peer *unixsock.Peer) *wire.Error {
	if peer == nil {
		return wire.Errorf(wire.CodePermissionDenied, "the peer's credentials cannot be read")
	}
	if peer.UnmappedUID {
		return wire.Errorf(wire.CodePermissionDenied, "user %d stands for every user that the daemon's user namespace does not map, "+
			"and allow_uids cannot name one of them: map the user, or use allow_gids", peer.UID)
	}
	return wire.Errorf(wire.CodePermissionDenied,
		"user %d with %s may not use this daemon: ask its operator to add one of them to allow_uids or allow_gids", peer.UID, groupsOf(peer))
}

// groupsTold is the number of groups that an error lists.
const groupsTold = 16

// groupsOf lists the groups of the peer when it connected.
func groupsOf(peer *unixsock.Peer) string {
	all := append([]uint32{peer.GID}, peer.Groups...)
	slices.Sort(all)
	if all = slices.Compact(all); len(all) == 1 {
		return fmt.Sprintf("group %d", peer.GID)
	}
	told := strings.Trim(strings.ReplaceAll(fmt.Sprint(all[:min(len(all), groupsTold)]), " ", ", "), "[]")
	if len(all) > groupsTold {
		told += ", ..."
	}
	return "groups " + told
}

// turnAway answers the peer's first request with the refusal, and closes.
func (c *conn) turnAway(refusal *wire.Error) {
	c.mu.Lock()
	defer c.close()
	c.turned = true
	_ = c.net.SetReadDeadline(time.Now().Add(c.server.patience.refuse))
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
