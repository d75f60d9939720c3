package disktest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

// Way is a way to put a file back.
type Way struct {
	Name string
	// InPlace: the file stays the same one, with its inode, and processes that have it open see
	// the new content.
	InPlace bool
	// put puts the copy in the place of the file.
	put func(t testing.TB, from, to string)
}

// Ways are those in which people put files back.
var Ways = []Way{
	{"rm+cp", false, func(t testing.TB, from, to string) {
		untilReused(t, to, func() { Run(t, "cp", "-a", from, to) })
	}},
	{"rm+tar", false, func(t testing.TB, from, to string) {
		archive := filepath.Join(t.TempDir(), "backup.tar")
		Run(t, "tar", "-C", filepath.Dir(from), "-cf", archive, filepath.Base(from))
		untilReused(t, to, func() {
			Run(t, "tar", "-C", filepath.Dir(to), "-xf", archive, "--transform", "s|.*|"+filepath.Base(to)+"|")
		})
	}},
	{"rename", false, func(t testing.TB, from, to string) {
		Run(t, "cp", "-a", from, to+".put-back")
		Run(t, "mv", to+".put-back", to)
	}},
	{"cp in place", true, func(t testing.TB, from, to string) { Run(t, "cp", from, to) }},
	{"cp -p in place", true, func(t testing.TB, from, to string) { Run(t, "cp", "-p", from, to) }},
}

// reuseTries is how often a file is put back until it has the inode of before.
const reuseTries = 100

// untilReused puts the file back again and again until it has the inode that it
// had before, as a file system may give it at once.
func untilReused(t testing.TB, path string, put func()) {
	t.Helper()
	before := inodeOf(t, path)
	for range reuseTries {
		must.Succeed(t, os.Remove(path))
		put()
		if inodeOf(t, path) == before {
			return
		}
	}
	t.Logf("after %d tries %s has another inode", reuseTries, path)
}

func inodeOf(t testing.TB, path string) uint64 {
	t.Helper()
	info, err := os.Stat(path)
	must.Succeed(t, err)
	return info.Sys().(*syscall.Stat_t).Ino
}

// logs end the names of the files in which SQLite has changes that the main file lacks.
var logs = []string{"-wal", "-journal"}

// Put puts the database at from in the place of the one at to. The log beside the
// latter stays where leaveLog says so, and is the copy's own otherwise.
func (w Way) Put(t testing.TB, from, to string, leaveLog bool) {
	t.Helper()
	if !leaveLog {
		for _, suffix := range logs {
			if err := os.Remove(to + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
		}
		for _, suffix := range logs {
			if _, err := os.Stat(from + suffix); err == nil {
				Run(t, "cp", "-p", from+suffix, to+suffix)
			}
		}
	}
	w.put(t, from, to)
}

// Copy copies a database that no process has open, with its log, as a backup would.
func Copy(t testing.TB, from, to string) {
	t.Helper()
	for _, suffix := range append([]string{""}, logs...) {
		if _, err := os.Stat(from + suffix); err == nil {
			Run(t, "cp", "-a", from+suffix, to+suffix)
		}
	}
}

// Journal is the rollback journal of a commit that makes after of before: what SQLite has on
// the disk before it writes to the main file.
func Journal(before, after []byte) []byte {
	const page, sector, nonce = 4096, 512, 1
	big := binary.BigEndian
	header := append([]byte{0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7}, make([]byte, sector-8)...)
	for i, n := range []uint32{math.MaxUint32, nonce, uint32(len(before) / page), sector, page} { // as many pages as there are
		big.PutUint32(header[8+4*i:], n)
	}
	journal := header
	for at := 0; at < len(before); at += page {
		old := before[at : at+page]
		if at+page <= len(after) && bytes.Equal(old, after[at:at+page]) {
			continue
		}
		sum := uint32(nonce)
		for i := page - 200; i > 0; i -= 200 {
			sum += uint32(old[i])
		}
		journal = append(big.AppendUint32(journal, uint32(at/page+1)), old...)
		journal = big.AppendUint32(journal, sum)
	}
	return journal
}
