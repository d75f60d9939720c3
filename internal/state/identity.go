package state

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// Identity identifies this machine and this boot of it.
type Identity struct {
	MachineID string // "" if it cannot be read, as in many containers
	BootID    string // "" if it cannot be read; then nothing is adopted
}

// machine is a digest of the machine ID: machine-id(5) asks to keep the ID itself
// confidential.
func (i Identity) machine() string {
	if i.MachineID == "" {
		return ""
	}
	mac := hmac.New(sha256.New, []byte("kazahana state binding"))
	mac.Write([]byte(i.MachineID))
	return hex.EncodeToString(mac.Sum(nil)[:16])
}

// folderNameLen is the length of a state directory's name for itself, under
// which its live state has a folder.
const folderNameLen = 32

// newFolderName makes a unique name from 128 random bits.
func newFolderName() string {
	var b [folderNameLen / 2]byte
	rand.Read(b[:]) // never fails (crypto/rand ends the program instead)
	return hex.EncodeToString(b[:])
}

func isFolderName(name string) bool {
	return len(name) == folderNameLen && strings.Trim(name, "0123456789abcdef") == ""
}
