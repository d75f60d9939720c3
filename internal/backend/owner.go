package backend

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/conn/sqlitefile"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/unixsock"
)

// A process that owns the file of a store takes an operator's requests on a socket in its live
// directory, from its own user and from root: their commands cannot open the file themselves.

// ownerRequest is one line of JSON, and the only one of a connection.
type ownerRequest struct {
	Op      ownerOp
	Declare *sequence.Declaration `json:",omitempty"`
}

type ownerOp string

const (
	ownerInit    ownerOp = "init"
	ownerFence   ownerOp = "fence"
	ownerLook    ownerOp = "look"
	ownerDeclare ownerOp = "declare"
	ownerBackup  ownerOp = "backup"
)

// ownerAnswer is one line of JSON, which the bytes of a backup follow.
type ownerAnswer struct {
	Error string `json:",omitempty"`
	Fence *Fence `json:",omitempty"`
	Size  int64  `json:",omitempty"` // of the backup
}

const (
	// ownerPatience is how long the owner waits for a request, and its store for the disk.
	ownerPatience = 30 * time.Second
	// ownerCloseWait is how long Close waits for requests that wait for the disk.
	ownerCloseWait = time.Second
	// copySuffix follows the file's path in the path of a directory for the copy of a backup. A
	// process that was killed may leave it: the next owner removes it.
	copySuffix = ".copy"
)

// ownerSocket serves a store that this process owns.
type ownerSocket struct {
	store    *Store
	path     string // of the file
	listener *net.UnixListener
	ctx      context.Context
	cancel   context.CancelFunc
	serving  sync.WaitGroup
}

// listenAsOwner makes the socket. A present one was left by a killed owner: this process has the
// file's lock.
func (s *Store) listenAsOwner(socket, path string) (*ownerSocket, error) {
	_ = os.Remove(socket)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	o := &ownerSocket{store: s, path: path, listener: l}
	o.ctx, o.cancel = context.WithCancel(context.Background())
	o.serving.Go(func() {
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return // it is closed
			}
			o.serving.Go(func() { o.serve(conn) })
		}
	})
	return o, nil
}

// Close ends the requests under way. A disk that does not answer can keep a copy from being
// removed: that request ends once the disk answers.
func (o *ownerSocket) Close() error {
	o.cancel()
	err := o.listener.Close()
	ended := make(chan struct{})
	go func() {
		o.serving.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(ownerCloseWait):
	}
	return err
}

func (o *ownerSocket) serve(conn *net.UnixConn) {
	defer context.AfterFunc(o.ctx, func() { _ = conn.Close() })()
	defer conn.Close()
	peer, err := unixsock.PeerOf(conn)
	if err != nil || peer.UnmappedUID || peer.UID != 0 && int(peer.UID) != os.Geteuid() {
		return
	}
	_ = conn.SetReadDeadline(time.Now().Add(ownerPatience))
	var request ownerRequest
	if json.NewDecoder(io.LimitReader(conn, 64<<10)).Decode(&request) != nil {
		return
	}
	var answer ownerAnswer
	var backup *os.File
	switch request.Op {
	case ownerBackup:
		if backup, err = o.backup(); err == nil {
			defer backup.Close()
			var info os.FileInfo
			if info, err = backup.Stat(); err == nil {
				answer.Size = info.Size()
			}
		}
	default:
		answer.Fence, err = o.do(request)
	}
	if err != nil {
		answer.Error = err.Error()
	}
	if json.NewEncoder(conn).Encode(answer) == nil && backup != nil && err == nil {
		_, _ = io.Copy(conn, backup)
	}
}

func (o *ownerSocket) do(request ownerRequest) (*Fence, error) {
	ctx, cancel := context.WithTimeout(o.ctx, ownerPatience)
	defer cancel()
	switch s := o.store; request.Op {
	case ownerInit:
		return nil, s.Init(ctx)
	case ownerFence:
		return s.Fence(ctx)
	case ownerLook:
		err := s.Look(ctx)
		return s.Fenced(), err
	case ownerDeclare:
		if request.Declare == nil {
			return nil, errors.New("a declaration is missing")
		}
		return nil, s.Declare(ctx, *request.Declare)
	}
	return nil, fmt.Errorf("this kazahanad knows no request %q", request.Op)
}

// backup makes a copy on the file's disk, which has no name any more: the process that asks
// may have a directory that this one cannot write to.
func (o *ownerSocket) backup() (*os.File, error) {
	dir := o.path + copySuffix
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("another backup is under way: %w", err)
	}
	defer os.RemoveAll(dir)
	to := filepath.Join(dir, "copy")
	if err := o.store.Backup(o.ctx, to); err != nil {
		return nil, err
	}
	return os.Open(to)
}

// orOwner asks the owner of the store's file, where err says that there is one. The bytes of a
// backup go to the writer.
func (s *Store) orOwner(ctx context.Context, err error, request ownerRequest, to io.Writer) (ownerAnswer, error) {
	var owned *sqlitefile.OwnedError
	if !errors.As(err, &owned) || owned.Socket == "" {
		return ownerAnswer{}, err
	}
	answer, failed := askOwner(ctx, owned.Socket, request, to)
	if failed != nil {
		return ownerAnswer{}, fmt.Errorf("%w; that process was asked at %s: %w", err, owned.Socket, failed)
	}
	return answer, nil
}

func askOwner(ctx context.Context, socket string, request ownerRequest, to io.Writer) (answer ownerAnswer, err error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return ownerAnswer{}, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if err := json.NewEncoder(conn).Encode(request); err != nil {
		return ownerAnswer{}, err
	}
	decoder := json.NewDecoder(conn)
	if err := decoder.Decode(&answer); errors.Is(err, io.EOF) {
		return ownerAnswer{}, errors.New("it serves its own user and root alone")
	} else if err != nil {
		return ownerAnswer{}, err
	}
	if answer.Error != "" {
		return ownerAnswer{}, errors.New(answer.Error)
	}
	if to == nil {
		return answer, nil
	}
	// The decoder has read beyond the line, and leaves its end.
	rest := io.MultiReader(decoder.Buffered(), conn)
	if _, err := io.ReadFull(rest, make([]byte, 1)); err != nil {
		return ownerAnswer{}, err
	}
	if n, err := io.Copy(to, rest); err != nil || n != answer.Size {
		return ownerAnswer{}, errors.Join(fmt.Errorf("%d of %d bytes of the copy came", n, answer.Size), err)
	}
	return answer, nil
}
