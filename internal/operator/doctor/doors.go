package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/kazahana/kazahana/internal/unixsock"
)

// Door is what a running daemon should answer beside its socket.
type Door struct {
	Key     string // memcached_listen or http_listen
	Address string // HOST:PORT or unix:PATH
	Socket  Socket // with a path
	PID     int    // of who answers there; 0 = not known
	Foreign bool   // TCP: no interface of this host has the address
	Denied  bool
	Stale   bool  // the socket of a process that is gone
	Err     error // it does not answer, or not in the protocol
}

// questions are what a door is asked, by its key, and how its answer begins. None takes an ID.
var questions = map[string]struct{ ask, want string }{
	"memcached_listen": {"version\r\n", "VERSION "},
	"http_listen":      {"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", "HTTP/1.1 404"},
}

// ProbeDoor asks a door. ctx must have a deadline.
func ProbeDoor(ctx context.Context, key, address string) Door {
	d := Door{Key: key, Address: address}
	network, at := "tcp", address
	if path, isPath := strings.CutPrefix(address, "unix:"); isPath {
		network, at, d.Socket = "unix", path, ProbeSocket(path)
	} else {
		d.Foreign = !isLocal(address)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, network, at)
	if err != nil {
		d.Err, d.Denied = err, d.Socket.Denied || errors.Is(err, fs.ErrPermission)
		d.Stale = d.Socket.Mode.Type() == fs.ModeSocket && !d.Denied
		return d
	}
	defer conn.Close()
	if socket, ok := conn.(*net.UnixConn); ok {
		if peer, err := unixsock.PeerOf(socket); err == nil {
			d.PID = peer.PID
		}
	}
	until, _ := ctx.Deadline()
	d.Err = ask(conn, until, questions[key].ask, questions[key].want)
	d.Denied = errors.Is(d.Err, os.ErrPermission)
	return d
}

func ask(conn net.Conn, until time.Time, question, want string) error {
	if err := conn.SetDeadline(until); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, question); err != nil {
		return err
	}
	answer := make([]byte, 200)
	n, err := io.ReadAtLeast(conn, answer, len(want))
	answer = answer[:n]
	switch {
	case bytes.HasPrefix(answer, []byte(want)):
		return nil
	case bytes.Contains(answer, []byte("PERMISSION_DENIED")), bytes.HasPrefix(answer, []byte("HTTP/1.1 403")):
		return os.ErrPermission
	case n == 0 && err != nil:
		return err
	}
	line, _, _ := bytes.Cut(answer, []byte("\r\n"))
	return fmt.Errorf("it answers %q", line)
}

// isLocal reports whether one can listen on the address here, as far as that can be told.
func isLocal(address string) bool {
	tcp, err := net.ResolveTCPAddr("tcp", address)
	if err != nil || tcp.IP == nil || tcp.IP.IsUnspecified() || tcp.IP.IsLoopback() {
		return true
	}
	all, err := net.InterfaceAddrs()
	return err != nil || slices.ContainsFunc(all, func(one net.Addr) bool {
		network, ok := one.(*net.IPNet)
		return ok && network.IP.Equal(tcp.IP)
	})
}

// JudgeDoor judges a door of the running daemon, which is a process and a user as this
// process sees them.
func JudgeDoor(d Door, pid int, uid uint32) Finding {
	at := d.Key + " " + d.Address
	switch {
	case d.Foreign:
		return finding("door.not_local", "%s: no interface of this host has that address", at)
	case d.Socket.Exists && d.Socket.UID != uid:
		return finding("door.foreign", "%s belongs to user %d, and the daemon is user %d", at, d.Socket.UID, uid)
	case d.Err == nil && d.PID != 0 && pid != 0 && d.PID != pid:
		return finding("door.foreign", "%s is answered by process %d, and the daemon is process %d", at, d.PID, pid)
	case d.Denied:
		return finding("door.denied", "this user may not connect to %s", at)
	case d.Stale:
		return finding("door.stale", "%s: no process listens on the socket", at)
	case d.Err != nil:
		return finding("door.silent", "%s does not answer: %v", at, d.Err)
	}
	return finding("door.answers", "%s answers", at)
}
