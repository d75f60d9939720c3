package sqlitefile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kazahana/kazahana/internal/folder"
)

// A place is a file beside the database that says where its watermark is. Each process holds a
// lock on it while it has the database open: a shared one, or, where one process owns the
// database, an exclusive one. All use the watermark that is named. A process that cannot reach
// it names one in its own live directory if it is alone, and else does not open the database.
type place struct {
	watched
	file *os.File
}

// record is the content of the file. Without a path, the processes that have the database
// open have no watermark.
type record struct {
	Watermark string `json:"watermark,omitempty"` // its ID
	Path      string `json:"path,omitempty"`
	PID       int    `json:"pid,omitempty"` // of the process that has written this
}

const (
	placeSuffix = "-watermark"
	// maxRecord limits the size of the file.
	maxRecord = 16 << 10
	// placeWait is how long to wait for processes that are about to end.
	placeWait = time.Second
)

// notShared says that other processes have the file open with a watermark that this one cannot
// reach: they belong to another user, or are in another container.
func (r record) notShared() error {
	theirs := "have no live directory"
	if r.Path != "" {
		theirs = "keep watch over it with " + r.Path + ", which this one cannot reach"
	}
	return fmt.Errorf("%w and %s, so neither would notice what the other writes: "+
		"give all of them the same user and live directory, or put a lease server in front of the file (docs/lease-server.md)", errLocked, theirs)
}

// OwnedError says that another process owns the file.
type OwnedError struct {
	PID int // as that process sees itself; 0: it did not say
	// Socket is where it takes requests; "" if it has no live directory.
	Socket string
}

// Is reports that another try may succeed.
func (e *OwnedError) Is(target error) bool { return target == errLocked }

func (e *OwnedError) Error() string {
	return fmt.Sprintf("process %d owns the file, which one process alone may use: ask that daemon by its socket, "+
		"put a lease server in front of the file (docs/lease-server.md), or keep locks and sequences in a store that processes share", e.PID)
}

// openPlace opens the place beside the database at path and the watermark that it names. It
// waits a moment for processes that are about to end.
func openPlace(ctx context.Context, path string, id identity, live string, owned bool) (p *place, w *watermark, err error) {
	ctx, cancel := context.WithTimeout(ctx, placeWait)
	defer cancel()
	_ = retryBusy(until(ctx, nil), func() error { // the last error says more than that the wait is over
		if p, err = newPlace(path); err == nil {
			if w, err = p.agree(path, id, live, owned); err != nil {
				err = errors.Join(err, p.close())
			}
		}
		return err
	})
	return p, w, err
}

// newPlace opens the file, and makes it if it is missing.
func newPlace(database string) (*place, error) {
	p := &place{watched: watched{name: database + placeSuffix}}
	var err error
	if p.file, err = openBeside(database, placeSuffix); err != nil {
		return nil, err
	}
	if p.info, err = p.file.Stat(); err == nil && !p.info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", p.name)
	}
	if err != nil {
		return nil, errors.Join(err, p.file.Close())
	}
	return p, nil
}

// agree takes the lock and opens the watermark; nil for none. Its error is busy if another try
// may succeed.
func (p *place) agree(path string, id identity, live string, owned bool) (*watermark, error) {
	alone := flock(p.file, unix.LOCK_EX)
	if alone != nil && !errors.Is(alone, errLocked) {
		return nil, alone
	}
	if alone != nil && !owned {
		if err := flock(p.file, unix.LOCK_SH); err != nil {
			return nil, err
		}
	}
	if err := p.check(); err != nil {
		return nil, errors.Join(err, errLocked) // made anew at the next try
	}
	said := p.read()
	switch {
	case alone != nil && owned:
		return nil, said.owner()
	case alone != nil && said.Path == "" && live == "":
		return nil, nil
	}
	w := said.reach(id)
	if alone != nil && w == nil {
		return nil, said.notShared()
	}
	if alone != nil {
		return w, nil
	}
	var err error
	if w == nil && live != "" {
		if w, err = watermarkOf(live, path, id); err != nil {
			return nil, err
		}
	}
	said = recordOf(w)
	err = p.write(said)
	if err == nil && !owned {
		// Changing the kind of a lock loses it for a moment, in which another process may
		// have been alone.
		if err = flock(p.file, unix.LOCK_SH); err == nil && p.read() != said {
			err = errLocked
		}
	}
	if err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

// openBeside opens a file beside the database, and makes it if it is missing, for the users who
// may open the database, as SQLite does with its own.
func openBeside(database, suffix string) (*os.File, error) {
	var of unix.Stat_t
	if err := ignoringEINTR(func() error { return unix.Stat(database, &of) }); err != nil {
		return nil, fmt.Errorf("stat %s: %w", database, err)
	}
	mode := os.FileMode(of.Mode & 0o666)
	file, err := os.OpenFile(database+suffix, os.O_RDWR|unix.O_NOFOLLOW, 0)
	made := errors.Is(err, fs.ErrNotExist)
	if made {
		file, err = os.OpenFile(database+suffix, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, mode)
	}
	if err != nil {
		return nil, err
	}
	if made && os.Geteuid() == 0 {
		err = file.Chown(int(of.Uid), int(of.Gid))
	}
	if info, statErr := file.Stat(); statErr == nil && info.Mode().Perm() != mode {
		_ = file.Chmod(mode) // by its owner, once the database was opened for others
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// read returns the record; an invalid one names nothing.
func (p *place) read() (r record) {
	if json.NewDecoder(io.NewSectionReader(p.file, 0, maxRecord)).Decode(&r) != nil {
		return record{}
	}
	return r
}

// recordOf is the record that names the watermark.
func recordOf(w *watermark) record {
	r := record{PID: os.Getpid()}
	if w != nil {
		r.Watermark, r.Path = w.id.String(), w.path
	}
	return r
}

// write writes over the record of before, so that it needs no room on a full disk.
func (p *place) write(r record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if _, err := p.file.WriteAt(append(text, '\n'), 0); err != nil {
		return err
	}
	return p.file.Truncate(int64(len(text) + 1))
}

// reach opens the recorded watermark; nil if that is not possible, or if it is of a file on
// another device, of which this one is a clone.
func (r record) reach(id identity) *watermark {
	if r.Path == "" {
		return nil
	}
	if !folder.InMemory(r.Path) {
		return nil
	}
	w, err := openWatermark(r.Path)
	if err != nil {
		return nil
	}
	if w.id.String() != r.Watermark || w.device != id.device {
		_ = w.close() // under the same path in another container
		return nil
	}
	return w
}

// owner is the error about the process that has written the record.
func (r record) owner() error {
	e := &OwnedError{PID: r.PID}
	if r.Path != "" {
		e.Socket = r.Path + socketSuffix
	}
	return e
}

// socketSuffix follows the watermark's path in the path of the owner's socket.
const socketSuffix = ".sock"

func (p *place) close() error { return p.file.Close() }
