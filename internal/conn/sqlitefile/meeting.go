package sqlitefile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A meeting is a file beside the database by which processes agree on a watermark. Each
// holds a shared lock on it while it has the database open, and the file names the watermark
// that they share. A process may write it only while it is alone. So a process that cannot
// reach the watermark of the others does not open the database.
type meeting struct {
	path string
	file *os.File
	info os.FileInfo
}

// record is the content of the file. Without a path, its openers have no watermark.
type record struct {
	Watermark string `json:"watermark,omitempty"` // its ID
	Path      string `json:"path,omitempty"`
}

const (
	meetingSuffix = "-watermark"
	// maxRecord limits the size of the file.
	maxRecord = 16 << 10
	// meetingWait is how long to wait for processes that are about to end.
	meetingWait = time.Second
)

// NotSharedError says that other processes have the file open with a watermark that this one
// cannot reach: they belong to another user, or are in another container.
type NotSharedError struct {
	Theirs string // path of their watermark; "" if they have none
}

// Is reports that another try may succeed.
func (e *NotSharedError) Is(target error) bool { return target == errLocked }

func (e *NotSharedError) Error() string {
	theirs := "have no live directory"
	if e.Theirs != "" {
		theirs = "keep watch over it with " + e.Theirs + ", which this one cannot reach"
	}
	return fmt.Sprintf("other processes have the file open and %s, so neither would notice what the other writes: "+
		"give all of them the same user and live directory, or put a lease server in front of the file (docs/lease-server.md)", theirs)
}

// met is the agreement of a process with the others that have the file open.
type met struct {
	*meeting
	watermark *watermark // nil: none
	// damaged says that the watermark of earlier openers cannot be read, and that this
	// process has none to note that in.
	damaged bool
	// alone says that no other process had the file open. It is known only where it
	// matters: after a change of the watermark, and for a file without a sure identity.
	alone bool
}

// meet opens the meeting beside the database at path. It waits a moment for
// processes that are about to end.
func meet(ctx context.Context, path, live string, id identity) (*met, error) {
	var own *watermark
	if live != "" {
		var err error
		if own, err = openOwnWatermark(live, id); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, meetingWait)
	defer cancel()
	var found *met
	var last error
	err := retryBusy(ctx, nil, func() error {
		found, last = tryToMeet(path, own, id.sure)
		return last
	})
	var others *NotSharedError
	if err != nil && errors.As(last, &others) {
		err = others // says more than that the wait is over
	}
	if own != nil && (err != nil || found.watermark != own) {
		err = errors.Join(err, own.close())
	}
	if err != nil {
		return nil, err
	}
	return found, nil
}

// tryToMeet is one try of meet. Its error is busy if another try may succeed.
func tryToMeet(path string, own *watermark, sure bool) (_ *met, err error) {
	m, err := openMeeting(path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.close())
		}
	}()
	said, err := m.join()
	if err != nil {
		return nil, err
	}
	theirs, damaged := said.reach()
	switch {
	case own == nil && (said.Path == "" && sure || theirs != nil):
		return &met{meeting: m, watermark: theirs}, nil
	case own != nil && theirs != nil && own.id == theirs.id:
		return &met{meeting: m, watermark: own}, theirs.close()
	}
	// Change the watermark if no other process has the file open.
	alone := flock(m.file, unix.LOCK_EX)
	if neither := own == nil && said.Path == ""; theirs == nil && !neither && errors.Is(alone, errLocked) {
		return nil, &NotSharedError{Theirs: said.Path}
	}
	// Changing the kind of a lock loses it for a moment, in which another process may
	// have been alone: the file counts as read under the shared lock.
	agreed := &met{meeting: m, watermark: theirs, alone: alone == nil, damaged: damaged && own == nil}
	if alone == nil {
		if err = own.succeed(theirs, damaged, sure); err == nil {
			err = m.write(own)
		}
		agreed.watermark, said = own, recordOf(own)
		if theirs != nil {
			err = errors.Join(err, theirs.close())
		}
	} else if !errors.Is(alone, errLocked) {
		err = alone
	}
	if again, joinErr := m.join(); err == nil && joinErr == nil && again != said {
		err = errLocked
	} else {
		err = errors.Join(err, joinErr)
	}
	if err != nil && agreed.watermark != nil && agreed.watermark != own {
		err = errors.Join(err, agreed.watermark.close())
	}
	return agreed, err
}

// succeed copies the record of the previous watermark, which is nil for none, before the new
// one takes its place. A crash in between must not lose it.
func (w *watermark) succeed(theirs *watermark, damaged, sure bool) error {
	if w == nil {
		return nil
	}
	return w.change(context.Background(), nil, func(s sight) sight {
		switch {
		case damaged:
			s.Life = doubtLost
		case theirs != nil && !theirs.last.blank():
			return theirs.last.ends(s.LatestEndMS, s.LongestMS)
		case !sure && s.blank():
			s.Life = doubtUnknown
		}
		return s
	})
}

// join takes the shared lock, and returns the record.
func (m *meeting) join() (record, error) {
	if err := flock(m.file, unix.LOCK_SH); err != nil {
		return record{}, err
	}
	return m.read()
}

// openMeeting opens the file, and makes it if it is missing, for the users who may open the
// database.
func openMeeting(database string) (*meeting, error) {
	path := database + meetingSuffix
	var of unix.Stat_t
	if err := ignoringEINTR(func() error { return unix.Stat(database, &of) }); err != nil {
		return nil, fmt.Errorf("stat %s: %w", database, err)
	}
	mode := os.FileMode(of.Mode & 0o666)
	file, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, mode)
		if err == nil && os.Geteuid() == 0 { // as SQLite does with its log
			err = file.Chown(int(of.Uid), int(of.Gid))
		}
	}
	if err != nil {
		if file != nil {
			err = errors.Join(err, file.Close())
		}
		return nil, err
	}
	m := &meeting{path: path, file: file}
	if m.info, err = file.Stat(); err == nil && !m.info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", path)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	if m.info.Mode().Perm() != mode {
		_ = file.Chmod(mode) // by its owner, once the database was opened for others
	}
	return m, nil
}

// read returns the record. A process that is alone writes an invalid one anew.
func (m *meeting) read() (r record, err error) {
	if err := m.there(); err != nil {
		return record{}, errors.Join(err, errLocked) // made anew at the next try
	}
	b := make([]byte, maxRecord)
	n, _ := m.file.ReadAt(b, 0)
	if n == 0 || json.Unmarshal(b[:n], &r) != nil {
		return record{}, nil
	}
	return r, nil
}

// recordOf is the record that names the watermark.
func recordOf(w *watermark) record {
	if w == nil {
		return record{}
	}
	return record{w.id.String(), w.path}
}

func (m *meeting) write(w *watermark) error {
	text, err := json.Marshal(recordOf(w))
	if err != nil {
		return err
	}
	if err := m.file.Truncate(0); err != nil {
		return err
	}
	_, err = m.file.WriteAt(append(text, '\n'), 0)
	return err
}

// reach opens the recorded watermark; nil if that is not possible.
func (r record) reach() (w *watermark, damaged bool) {
	if _, err := parseMark(r.Watermark); err != nil || r.Path == "" {
		return nil, false
	}
	if memory, err := inMemory(r.Path); err != nil || !memory {
		return nil, false
	}
	w, err := openWatermark(r.Path)
	if err != nil {
		return nil, errors.Is(err, errDamagedWatermark)
	}
	if w.id.String() != r.Watermark {
		_ = w.close() // it belongs to another container, under the same path
		return nil, false
	}
	return w, false
}

// there returns an error if the file has lost its name, so that others would meet elsewhere.
func (m *meeting) there() error {
	named, err := os.Lstat(m.path)
	if err == nil && os.SameFile(named, m.info) {
		return nil
	}
	return fmt.Errorf("%w (%s)", ErrMoved, m.path)
}

func (m *meeting) close() error { return m.file.Close() }
