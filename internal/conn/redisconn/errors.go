package redisconn

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"

	"github.com/kazahana/kazahana/internal/conn/connurl"
)

// The errors of this package that callers may want to tell apart.
var (
	// ErrClosed says that the client was closed.
	ErrClosed = errors.New("the connection to Redis is closed")
	// ErrUnconfirmed says that too few replicas confirmed a write.
	ErrUnconfirmed = errors.New("too few replicas confirmed it")
)

// hints explain Redis's errors, by their first word.
var hints = []struct{ code, hint string }{
	{"WRONGPASS", "the user name or password is wrong"},
	{"NOAUTH", "the server wants a password: put it into a file and name that with password_file="},
	{"NOPERM", "the user's ACL does not allow this command or key; the page on this provider has the rule to set"},
	{"LOADING", "the server is reading its data from disk; it will be back"},
	{"READONLY", "the server is a replica: name its primary, or use redis+sentinel://"},
	{"MISCONF", "the server cannot write its snapshot to disk, and refuses to change anything"},
	{"OOM", "the server has no memory left (maxmemory)"},
	{"NOREPLICAS", "the server has fewer good replicas than its min-replicas-to-write"},
	{"CLUSTERDOWN", "this is a Redis Cluster that is down, and clusters are not supported: use a single primary, with Sentinel"},
	{"MOVED", "this is a Redis Cluster, and clusters are not supported: use a single primary, with Sentinel"},
	{"CROSSSLOT", "this is a Redis Cluster, and clusters are not supported: use a single primary, with Sentinel"},
	{"MASTERDOWN", "the server is a replica that has lost its primary"},
	{"BUSY", "another script has been running on the server for seconds"},
	{"WRONGTYPE", "another program uses the same keys: choose another prefix="},
	{"ERR DB index", "the server does not have this database"},
	{"ERR invalid DB index", "the server does not have this database"},
	{"ERR max number of clients", "the server has reached its maxclients"},
	{"DENIED", "the server is in protected mode: it has no password and takes local connections only"},
}

// explain adds the server's place and a hint to its error.
func (c Config) explain(err error) error { return connurl.Explain(c.Place(), c.hintFor(err), err) }

func (c Config) hintFor(err error) string {
	var answer redis.Error
	var record tls.RecordHeaderError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &answer):
		for _, h := range hints {
			if strings.HasPrefix(answer.Error(), h.code) {
				return h.hint
			}
		}
		return ""
	case errors.As(err, &record):
		return "the server does not speak TLS on this port (redis:// is without)"
	case strings.Contains(err.Error(), "all sentinels"):
		return "no sentinel answers, or none knows the set by this name"
	case isTLS(c.Scheme) && connurl.IsTimeout(err):
		return "the server did not answer in time (is it TLS that it speaks on this port?)"
	case errors.Is(err, io.EOF) && !connurl.IsTimeout(err):
		return "the server closed the connection"
	}
	return connurl.Hint(err)
}

// isReadOnly reports whether the server was not, or no longer, the primary. Such a script
// has changed nothing.
func isReadOnly(err error) bool {
	var answer redis.Error
	return errors.As(err, &answer) && strings.HasPrefix(answer.Error(), "READONLY")
}

// isBroken reports whether the connection failed by itself, and not because the caller's
// time was up. The operation may have been carried out.
func isBroken(err error) bool {
	var answer redis.Error
	if err == nil || errors.As(err, &answer) || connurl.IsTimeout(err) {
		return false
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// TooFewReplicas is the error for a script that changed nothing, because no more replicas
// than that are connected.
func (c *Client) TooFewReplicas(connected int64) error {
	return &tooFewReplicas{connected, c.cfg.MinReplicas, false}
}

type tooFewReplicas struct {
	connected int64
	wanted    int
	unknown   bool // an earlier try may have been carried out
}

func (e *tooFewReplicas) Error() string {
	outcome := "nothing was done"
	if e.unknown {
		outcome = "the connection broke during an earlier try, which may have been carried out"
	}
	return fmt.Sprintf("%v: %d are connected, and min_replicas=%d must confirm each write; %s", ErrUnconfirmed, e.connected, e.wanted, outcome)
}

func (e *tooFewReplicas) Unwrap() error { return ErrUnconfirmed }
