package daemon

import (
	"math"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/operator/quota"
	"github.com/kazahana/kazahana/internal/wire"
	"go.uber.org/zap"
)

// Limits are what of a Server's Config may change while it serves.
type Limits struct {
	AllowUIDs, AllowGIDs []uint32
	MaxConnections       int
	MaxInFlight          int
	DrainTimeout         time.Duration
	// MemoryLimit is how many bytes the process may use; 0 is no limit. Connections,
	// waiting requests, and the bytes of unfinished messages and unread answers have
	// their share of it.
	MemoryLimit int64
	// Files is how many connections the limit of open files allows; 0 is no limit.
	Files int
	// What one user may take of each limit; 0 is three quarters of it.
	UserConnections, UserInFlight, UserHolds int
	UserMemory                               int64
}

// Shares of MemoryLimit. The rest is for the daemon itself, and for the garbage that
// short-lived buffers leave.
const (
	connectionShare = 2  // a half
	waitingShare    = 16 // a sixteenth
	lockWaiterShare = 16 // a sixteenth
	holdShare       = 16 // a sixteenth
	bytesShare      = 8  // an eighth
	sendingShare    = 16 // a sixteenth
	// connectionSize is what a connection costs at most: 14 KiB for a goroutine and small
	// buffers, smallSendCost, and the kernel's records of it.
	connectionSize = 32 << 10
	waitingSize    = 8 << 10 // that a waiting request with a goroutine costs
	holdSize       = 2 << 10 // that a lock costs which a connection holds
)

// Keys that errors name.
const (
	keyMemory      = "memory_limit"
	keyUserMemory  = "quota_bytes"
	keyUserWaiting = "quota_waiting"
	keyUserHolds   = "quota_holds"
)

// within is the limit for all users: the configured one, or what the share of memory
// allows if that is less. key names the setting that decides.
func (l *Limits) within(configured int, key string, share, size int64) (most int, by string) {
	if l.MemoryLimit > 0 {
		if allowed := max(l.MemoryLimit/share/size, 1); allowed < int64(configured) {
			return int(allowed), keyMemory
		}
	}
	return configured, key
}

func (l *Limits) connections() (most int, key string) {
	most, key = l.within(l.MaxConnections, "max_connections", connectionShare, connectionSize)
	if 0 < l.Files && l.Files < most {
		return l.Files, quota.Files
	}
	return most, key
}

func (l *Limits) inFlight() (most int, key string) {
	return l.within(l.MaxInFlight, "max_in_flight", waitingShare, waitingSize)
}

func (l *Limits) userConnections() (most int, key string) {
	all, _ := l.connections()
	return int(ofUser(int64(l.UserConnections), int64(all))), "quota_connections"
}

// lockWaiters is how many requests may wait for locks, which do not count among the others
// that wait.
func (l *Limits) lockWaiters() (most int, key string) {
	return l.within(l.MaxInFlight, "max_in_flight", lockWaiterShare, waitingSize)
}

// holds is how many locks connections may hold, watches included.
func (l *Limits) holds() (most int, key string) {
	return l.within(lock.MaxHeld, quota.FixedHolds, holdShare, holdSize)
}

// bytes is how many bytes unfinished messages and unread answers may have, of all users
// and of one.
func (l *Limits) bytes() (all, user int64) {
	if l.MemoryLimit <= 0 {
		all = math.MaxInt64 / 4
	} else {
		all = max(l.MemoryLimit/bytesShare, 2*wire.MaxMessage)
	}
	return all, ofUser(l.UserMemory, all)
}

// ofUser is what one user may take: the configured number, else three quarters, rounded
// up.
func ofUser(configured, all int64) int64 {
	if configured > 0 {
		return min(configured, all)
	}
	return all - all/4
}

// SetLimits replaces the limits, for connections and requests that come from now on. The
// connections of peers that are not allowed any more end; others stay. l's slices must not
// be changed.
func (s *Server) SetLimits(l Limits) {
	s.limits.Store(&l)
	if n := s.budget.dismiss(); n > 0 {
		s.log.Warn("connections closed: their peers are not allowed any more", zap.Int("connections", n))
	}
}

// DrainTimeout is how long a drain that begins now may take.
func (s *Server) DrainTimeout() time.Duration { return s.limits.Load().DrainTimeout }
