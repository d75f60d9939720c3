package sqlitefile

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sys/unix"

	"github.com/kazahana/kazahana/internal/folder"
)

// A watermark is a small file in memory that remembers the database as it was last written.
// A database that is behind its watermark was restored from an older copy. A watermark waits for
// no disk, is in no backup, and does not survive a reboot.
type watermark struct {
	path string
	id   mark // also recorded beside the database, so that no other watermark takes its place
	made bool // the live directory is this process's own: it writes a lost watermark anew
	file *os.File
	last sight // as this process last read or wrote it
}

// sight is what a watermark remembers of the database.
type sight struct {
	Life        mark
	Next        mark // of a life that is about to begin
	Commits     int64
	LatestEndMS int64
	LongestMS   int64
	Main        stamp // of the main file, after the last checkpoint
}

// Doubts are lives that no database has. They last until the fence that they cause, because
// the opening that noticed them may fail before.
var (
	doubtLost    = mark{15: 1} // what the watermark knew is lost
	doubtUnknown = mark{15: 2} // the file system cannot tell whether the database is a copy
)

// blank reports whether the watermark has seen nothing yet.
func (s sight) blank() bool { return s.Life == mark{} }

// knows reports whether the watermark has seen the database's life.
func (s sight) knows(l life) bool { return !s.blank() && (l.ID == s.Life || l.ID == s.Next) }

// with adds the content of the row. Its numbers never go down within a life.
func (s sight) with(l life) sight {
	if !s.knows(l) {
		s.Commits = 0
	}
	s.Life, s.Next = l.ID, mark{}
	s.Commits = max(s.Commits, l.Commits)
	return s.ends(l.LatestEndMS, l.LongestMS)
}

func (s sight) ends(latest, longest int64) sight {
	s.LatestEndMS, s.LongestMS = max(s.LatestEndMS, latest), max(s.LongestMS, longest)
	return s
}

// The format of the file.
const (
	watermarkMagic = "kzhnwit1"
	watermarkSize  = 8 + 3*16 + 6*8 + 8
)

var (
	errDamagedWatermark = errors.New("the watermark is damaged")
	// errLocked says that another process holds the watermark's lock.
	errLocked = errors.New("another process looks at the file")
)

func encodeWatermark(id mark, s sight) []byte {
	b := append(make([]byte, 0, watermarkSize), watermarkMagic...)
	b = append(append(append(b, id[:]...), s.Life[:]...), s.Next[:]...)
	for _, n := range []int64{s.Commits, s.LatestEndMS, s.LongestMS, s.Main.Size, s.Main.ModifiedNS, s.Main.ChangedNS} {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	return binary.LittleEndian.AppendUint64(b, xxhash.Sum64(b))
}

func decodeWatermark(b []byte) (id mark, s sight, err error) {
	if len(b) != watermarkSize || string(b[:8]) != watermarkMagic || binary.LittleEndian.Uint64(b[watermarkSize-8:]) != xxhash.Sum64(b[:watermarkSize-8]) {
		return mark{}, sight{}, errDamagedWatermark
	}
	id, s.Life, s.Next = mark(b[8:24]), mark(b[24:40]), mark(b[40:56])
	for i, n := range []*int64{&s.Commits, &s.LatestEndMS, &s.LongestMS, &s.Main.Size, &s.Main.ModifiedNS, &s.Main.ChangedNS} {
		*n = int64(binary.LittleEndian.Uint64(b[56+8*i:]))
	}
	return id, s, nil
}

// tornReads is how often to read a watermark that another process may be writing.
const tornReads = 3

// openWatermark opens an existing watermark. The error is fs.ErrNotExist if there is none, and
// errDamagedWatermark if it cannot be read.
func openWatermark(path string) (*watermark, error) {
	file, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	w := &watermark{path: path, file: file}
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(errDamagedWatermark, err, file.Close())
	}
	if w.id, w.last, err = w.readFile(); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return w, nil
}

func (w *watermark) readFile() (id mark, s sight, err error) {
	var b [watermarkSize]byte
	for range tornReads {
		if _, err = w.file.ReadAt(b[:], 0); err != nil {
			err = fmt.Errorf("%w: %s: %w", errDamagedWatermark, w.path, err)
			continue
		}
		if id, s, err = decodeWatermark(b[:]); err == nil {
			return id, s, nil
		}
	}
	return mark{}, sight{}, fmt.Errorf("%s: %w", w.path, err)
}

// openOwnWatermark opens the database's watermark in the live directory. It makes a missing one,
// and replaces a damaged one.
func openOwnWatermark(live string, id identity) (*watermark, error) {
	damaged := false
	if !filepath.IsAbs(live) {
		return nil, fmt.Errorf("the live directory %s: its path must be absolute", live)
	}
	if _, err := folder.Make(live, 0o700); err != nil {
		return nil, fmt.Errorf("the live directory: %w", err)
	}
	if memory, err := inMemory(live); err != nil || !memory {
		return nil, errors.Join(err, fmt.Errorf("the live directory %s is not on a file system in memory (tmpfs): name one that is, for example in /run", live))
	}
	path := filepath.Join(live, id.name())
	for {
		w, err := openWatermark(path)
		switch {
		case err == nil:
			w.made = true
			return w, nil
		case errors.Is(err, errDamagedWatermark):
			damaged = true
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
		case !errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("the live directory: %w", err)
		}
		known := sight{}
		if damaged {
			known.Life = doubtLost
		}
		if err := makeWatermark(path, newMark(), known); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("the live directory: %w", err)
		}
	}
}

// makeWatermark writes a new watermark, which is complete before it gets its name. The error is
// fs.ErrExist if there is one.
func makeWatermark(path string, id mark, s sight) error {
	temp := fmt.Sprintf("%s.new-%08x", path, rand.Uint32())
	defer os.Remove(temp)
	if err := os.WriteFile(temp, encodeWatermark(id, s), 0o600); err != nil {
		return err
	}
	return os.Link(temp, path)
}

// read reads the watermark.
func (w *watermark) read() (sight, error) {
	if err := w.keep(); err != nil {
		return sight{}, err
	}
	_, s, err := w.readFile()
	if err == nil {
		w.last = s
	}
	return s, err
}

// keep checks that the watermark still has its name, and restores the name if the live
// directory is this process's own. Otherwise the processes that have it open still share it.
func (w *watermark) keep() error {
	mine, err := w.file.Stat()
	if err != nil {
		return err
	}
	named, err := os.Lstat(w.path)
	switch {
	case err == nil && os.SameFile(mine, named):
		return nil
	case err == nil:
	case errors.Is(err, fs.ErrNotExist) && w.made:
		if _, err := folder.Make(filepath.Dir(w.path), 0o700); err != nil || ignoring(makeWatermark(w.path, w.id, w.last), fs.ErrExist) != nil {
			return nil
		}
	default:
		return nil
	}
	other, err := openWatermark(w.path)
	if err != nil || other.id != w.id {
		if other != nil {
			err = errors.Join(err, other.file.Close())
		}
		return errors.Join(fmt.Errorf("the live directory has another file in place of %s: restart every process that uses the database", w.path), err)
	}
	before := w.last
	if err := w.file.Close(); err != nil {
		return err
	}
	w.file, w.last = other.file, other.last
	return w.change(context.Background(), nil, func(s sight) sight {
		if s.blank() || s.Life == before.Life && s.Commits < before.Commits {
			return before.ends(s.LatestEndMS, s.LongestMS)
		}
		return s.ends(before.LatestEndMS, before.LongestMS)
	})
}

func ignoring(err, harmless error) error {
	if errors.Is(err, harmless) {
		return nil
	}
	return err
}

// change changes the watermark under its lock.
func (w *watermark) change(ctx context.Context, closing <-chan struct{}, f func(sight) sight) error {
	if err := w.lock(ctx, closing); err != nil {
		return err
	}
	return errors.Join(w.changeLocked(f), w.unlock())
}

// changeLocked is change for a caller that holds the lock.
func (w *watermark) changeLocked(f func(sight) sight) error {
	_, before, err := w.readFile()
	if err != nil {
		return err
	}
	return w.write(f(before))
}

// write replaces the watermark's content, for a caller that holds the lock.
func (w *watermark) write(s sight) error {
	if _, err := w.file.WriteAt(encodeWatermark(w.id, s), 0); err != nil {
		return fmt.Errorf("the live directory: %w", err)
	}
	w.last = s
	return nil
}

// lock locks the watermark against other processes: for moments, or while a process writes or
// reads the whole main file.
func (w *watermark) lock(ctx context.Context, closing <-chan struct{}) error {
	return retryBusy(ctx, closing, func() error { return flock(w.file, unix.LOCK_EX) })
}

func (w *watermark) unlock() error { return flock(w.file, unix.LOCK_UN) }

func (w *watermark) close() error { return w.file.Close() }

// flock takes or releases a lock without waiting: errLocked if another process holds it.
func flock(f *os.File, how int) error {
	err := ignoringEINTR(func() error { return unix.Flock(int(f.Fd()), how|unix.LOCK_NB) })
	if err == unix.EWOULDBLOCK {
		return errLocked
	}
	if err != nil {
		return fmt.Errorf("flock %s: %w", f.Name(), err)
	}
	return nil
}
