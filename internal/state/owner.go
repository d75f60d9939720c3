package state

import (
	"crypto/rand"
	"encoding/hex"
	"os"
	"strings"
)

// maxOwnerHost is how much of the host's name an owner begins with.
const maxOwnerHost = 56

// ownerRecord is the part of the state file about the owner of locks. It is bound to the
// identity in the file, to this boot, and to the very directory that it was written in. So the
// owner outlives everything that programs which hold locks outlive: a restart of the daemon,
// another host or pod name, the loss of the live directory. A copy of the directory has another
// device or inode while the first one is in use: its daemon keeps it open. File systems that
// show two directories as one (virtiofs and 9p over several volumes) are the reason for the
// identity, which one daemon at a time can lock.
type ownerRecord struct {
	Name string `json:"name"`
	Boot string `json:"boot"`
	FileID
}

// Owner is the name under which this daemon takes locks: the host's name as it was when the owner
// was made, and a random part. No other daemon has it.
func (s *State) Owner() string { return s.owner.Name }

// chooseOwner goes on with the owner in the state file, or makes one. The identity is chosen.
func (s *State) chooseOwner(file stateFile) {
	id, err := s.disk.Identify(".")
	last, next := file.Owner, ownerRecord{Name: newOwner(), Boot: s.opts.identity().BootID, FileID: id}
	if next.Boot == "" {
		s.opts.Log.Warn("the boot ID of this host cannot be read (/proc/sys/kernel/random/boot_id): after a crash no lease is adopted, and locks that are held across a restart are lost")
	}
	s.owner = last
	if last.Name == "" || s.folder != file.Folder || next.Boot == "" || err != nil || last.Boot != next.Boot || last.FileID != next.FileID {
		s.owner = next
	}
}

// newOwner makes an owner from the host's name, for people, and 64 random bits.
func newOwner() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown"
	}
	host = strings.Map(func(r rune) rune {
		if r > 'z' || !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_", r) {
			return '-'
		}
		return r
	}, host)
	var b [8]byte
	rand.Read(b[:]) // never fails
	return host[:min(len(host), maxOwnerHost)] + "+" + hex.EncodeToString(b[:])
}
