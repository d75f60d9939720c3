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

// A meeting is a file beside the database by which processes agree on a witness.
// Each holds a shared lock on it while it has the database open, and the file
// says which witness they share. Only who is alone may write it. So a process
// that cannot reach the witness of the others does not open the database.
type meeting struct {
	path string
	file *os.File
	info os.FileInfo
}

// record is what the file says. Without a path, its openers have no witness.
type record struct {
	Witness string `json:"witness,omitempty"` // its ID
	Path    string `json:"path,omitempty"`
}

const (
	meetingSuffix = "-witness"
	// maxRecord bounds what is read of the file.
	maxRecord = 16 << 10
	// meetingWait is how long to wait for processes that are about to end.
	meetingWait = time.Second
)

// NotSharedError: other processes have the file open and a witness that this one
// cannot reach: they are another user's, or in another container.
type NotSharedError struct {
	Theirs string // path of their witness; "" where they have none
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

// met is what a process and the others that have the file open agree on.
type met struct {
	*meeting
	witness *witness // nil: none
	// damaged: the witness of the openers before cannot be read, and there is none
	// of this process to note it in.
	damaged bool
	// alone: nobody had the file open. It is only known where it matters: with a
	// witness that was changed, and of a file that has no sure identity.
	alone bool
}

// meet opens the meeting beside the database at path. It waits a moment for
// processes that are about to end.
func meet(ctx context.Context, path, live string, id identity) (*met, error) {
	var own *witness
	if live != "" {
		var err error
		if own, err = openOwnWitness(live, id); err != nil {
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
		err = others // and not that the wait is over
	}
	if own != nil && (err != nil || found.witness != own) {
		err = errors.Join(err, own.close())
	}
	if err != nil {
		return nil, err
	}
	return found, nil
}

// tryToMeet is one try. Its error is busy where another may succeed. sure is the
// identity's.
func tryToMeet(path string, own *witness, sure bool) (_ *met, err error) {
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
		return &met{meeting: m, witness: theirs}, nil
	case own != nil && theirs != nil && own.id == theirs.id:
		return &met{meeting: m, witness: own}, theirs.close()
	}
	// Another witness from now on, if nobody has the file open.
	alone := flock(m.file, unix.LOCK_EX)
	if neither := own == nil && said.Path == ""; theirs == nil && !neither && errors.Is(alone, errLocked) {
		return nil, &NotSharedError{Theirs: said.Path}
	}
	// To take one lock is to lose the other for a moment, in which somebody else
	// may have been alone: what the file says counts under the shared lock.
	agreed := &met{meeting: m, witness: theirs, alone: alone == nil, damaged: damaged && own == nil}
	if alone == nil {
		if err = own.succeed(theirs, damaged, sure); err == nil {
			err = m.write(own)
		}
		agreed.witness, said = own, recordOf(own)
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
	if err != nil && agreed.witness != nil && agreed.witness != own {
		err = errors.Join(err, agreed.witness.close())
	}
	return agreed, err
}

// succeed has the witness remember what the one before it does, before it takes its
// place: what an opening knows ends with a crash. nil stands for none.
func (w *witness) succeed(theirs *witness, damaged, sure bool) error {
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

// join takes the shared lock, and returns what the file says.
func (m *meeting) join() (record, error) {
	if err := flock(m.file, unix.LOCK_SH); err != nil {
		return record{}, err
	}
	return m.read()
}

// openMeeting opens the file, and makes it where it is missing: for those who may
// open the database.
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

// read is what the file says. One that cannot be understood says nothing: it is
// written anew by who is alone.
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

// recordOf is the record that names the witness.
func recordOf(w *witness) record {
	if w == nil {
		return record{}
	}
	return record{w.id.String(), w.path}
}

func (m *meeting) write(w *witness) error {
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

// reach opens the witness that is recorded; nil where that is not possible.
func (r record) reach() (w *witness, damaged bool) {
	if _, err := parseMark(r.Witness); err != nil || r.Path == "" {
		return nil, false
	}
	if memory, err := inMemory(r.Path); err != nil || !memory {
		return nil, false
	}
	w, err := openWitness(r.Path)
	if err != nil {
		return nil, errors.Is(err, errDamagedWitness)
	}
	if w.id.String() != r.Witness {
		_ = w.close() // another container's, of the same name
		return nil, false
	}
	return w, false
}

// there reports, as an error, that the file lost its name, so that others meet
// elsewhere.
func (m *meeting) there() error {
	named, err := os.Lstat(m.path)
	if err == nil && os.SameFile(named, m.info) {
		return nil
	}
	return fmt.Errorf("%w (%s)", ErrMoved, m.path)
}

func (m *meeting) close() error { return m.file.Close() }
