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
	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/kazahana/kazahana/internal/folder"
)

// A watermark is a small file in memory that remembers the database as it was last written.
// A database that is behind its watermark was put back. A watermark waits for no disk, is in
// no backup, and does not survive a reboot. All processes that have the database open share
// it; see place.
type watermark struct {
	path   string
	id     mark   // also recorded beside the database, so that no other watermark takes its place
	device uint64 // of the database
	file   *os.File
}

// sight is a watermark's memory of the database.
type sight struct {
	// Done is the latest commit, and Main the main file after it. Next is the commit that
	// may be under way: its process raises Next before it commits, and Done afterwards.
	Done, Next  point
	Main        stamp
	LatestEndMS int64
	LongestMS   int64
}

// point is a commit. Commits rises from one life to the next.
type point struct {
	Life    mark
	Commits int64
}

// blank reports whether the watermark has seen nothing yet: then the file was not judged
// since it was made.
func (s sight) blank() bool { return s.Done == point{} }

// knows reports whether the watermark has seen the database's life.
func (s sight) knows(l life) bool {
	return !s.blank() && (l.ID == s.Done.Life || l.ID == s.Next.Life)
}

// done notes a commit, and the main file as it was then, unless a later one is known.
func (s sight) done(l life, main stamp) sight {
	if s.Done.Commits <= l.Commits {
		s.Done, s.Main = l.point(), main
	}
	s.LatestEndMS, s.LongestMS = max(s.LatestEndMS, l.LatestEndMS), max(s.LongestMS, l.LongestMS)
	return s
}

// The format of the file.
const (
	watermarkMagic = "kzhnwit2"
	watermarkSize  = 8 + 16 + 8 + 2*(16+8) + 5*8 + 8
)

var (
	errDamagedWatermark = errors.New("the watermark is damaged: end every process that uses the database, and start again")
	// errLocked says that another process holds a lock. Another try may succeed.
	errLocked = errors.New("other processes have the file open")
)

func (w *watermark) encode(s sight) []byte {
	b := append(make([]byte, 0, watermarkSize), watermarkMagic...)
	b = binary.LittleEndian.AppendUint64(append(b, w.id[:]...), w.device)
	for _, p := range []point{s.Done, s.Next} {
		b = binary.LittleEndian.AppendUint64(append(b, p.Life[:]...), uint64(p.Commits))
	}
	for _, n := range []int64{s.Main.Size, s.Main.ModifiedNS, s.Main.ChangedNS, s.LatestEndMS, s.LongestMS} {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	return binary.LittleEndian.AppendUint64(b, xxhash.Sum64(b))
}

// decode reads what encode wrote, and sets the watermark's own fields.
func (w *watermark) decode(b []byte) (s sight, err error) {
	const body = watermarkSize - 8
	if len(b) != watermarkSize || string(b[:8]) != watermarkMagic || binary.LittleEndian.Uint64(b[body:]) != xxhash.Sum64(b[:body]) {
		return sight{}, errDamagedWatermark
	}
	w.id, w.device, b = mark(b[8:24]), binary.LittleEndian.Uint64(b[24:32]), b[32:]
	for _, p := range []*point{&s.Done, &s.Next} {
		p.Life, p.Commits, b = mark(b[:16]), int64(binary.LittleEndian.Uint64(b[16:24])), b[24:]
	}
	for i, n := range []*int64{&s.Main.Size, &s.Main.ModifiedNS, &s.Main.ChangedNS, &s.LatestEndMS, &s.LongestMS} {
		*n = int64(binary.LittleEndian.Uint64(b[8*i:]))
	}
	return s, nil
}

// openWatermark opens an existing watermark.
func openWatermark(path string) (*watermark, error) {
	file, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	w := &watermark{path: path, file: file}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errDamagedWatermark
	}
	if err == nil {
		_, err = w.read(nil)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return w, nil
}

// watermarkOf opens the watermark of the database at path in the live directory. It makes a
// missing one, and replaces a damaged one. It belongs to the folder and the name: so a file
// that takes the place of another has the same one.
func watermarkOf(live, path string, id identity) (*watermark, error) {
	if !filepath.IsAbs(live) {
		return nil, fmt.Errorf("the live directory %s: its path must be absolute", live)
	}
	if _, err := folder.Make(live, 0o700); err != nil {
		return nil, fmt.Errorf("the live directory: %w", err)
	}
	if !folder.InMemory(live) {
		return nil, fmt.Errorf("the live directory %s is not on a file system in memory (tmpfs): name one that is, for example in /run", live)
	}
	dir, err := identityOf(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	// The folder's birth time, where there is one, distinguishes it from a folder that had its inode before.
	name := filepath.Join(live, fmt.Sprintf("sqlite-%x-%x-%x-%x", dir.device, uint64(dir.Inode), uint64(dir.BornNS), xxhash.Sum64String(filepath.Base(path))))
	for {
		w, err := openWatermark(name)
		switch {
		case err == nil && w.device == id.device:
			return w, nil
		case err == nil:
			err = errors.Join(w.close(), os.Remove(name)) // of another file system, which was mounted here before
		case errors.Is(err, errDamagedWatermark):
			err = os.Remove(name)
		}
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			err = makeWatermark(&watermark{path: name, id: uuid.New(), device: id.device})
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("the live directory: %w", err)
		}
	}
}

// makeWatermark writes a blank watermark, which is complete before it gets its name. The error
// is fs.ErrExist if there is one.
func makeWatermark(w *watermark) error {
	temp := fmt.Sprintf("%s.new-%08x", w.path, rand.Uint32())
	defer os.Remove(temp)
	if err := os.WriteFile(temp, w.encode(sight{}), 0o600); err != nil {
		return err
	}
	return os.Link(temp, w.path)
}

// read reads the watermark; nil has seen nothing.
func (w *watermark) read(closing <-chan struct{}) (s sight, err error) {
	if w == nil {
		return sight{}, nil
	}
	if s, err = w.parse(); err == nil {
		return s, nil
	}
	// Another process may have been writing it.
	err = w.locked(closing, func() error {
		s, err = w.parse()
		return err
	})
	return s, err
}

func (w *watermark) parse() (s sight, err error) {
	var b [watermarkSize]byte
	if _, err = w.file.ReadAt(b[:], 0); err == nil {
		s, err = w.decode(b[:])
	}
	if err != nil {
		return sight{}, fmt.Errorf("%s: %w", w.path, errDamagedWatermark)
	}
	return s, nil
}

// change changes the watermark; nil has nothing to change.
func (w *watermark) change(closing <-chan struct{}, f func(sight) sight) error {
	if w == nil {
		return nil
	}
	return w.locked(closing, func() error {
		s, err := w.parse()
		if err != nil {
			return err
		}
		if _, err = w.file.WriteAt(w.encode(f(s)), 0); err != nil {
			return fmt.Errorf("the live directory: %w", err)
		}
		return nil
	})
}

// locked calls do under the watermark's lock, which others hold for moments.
func (w *watermark) locked(closing <-chan struct{}, do func() error) error {
	if err := retryBusy(until(context.Background(), closing), func() error { return flock(w.file, unix.LOCK_EX) }); err != nil {
		return err
	}
	return errors.Join(do(), flock(w.file, unix.LOCK_UN))
}

func (w *watermark) close() error {
	if w == nil {
		return nil
	}
	return w.file.Close()
}

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
