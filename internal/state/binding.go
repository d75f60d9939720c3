package state

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"strings"
)

// Identity is what tells this run of this machine from every other.
type Identity struct {
	MachineID string // "" if it cannot be read, as in many containers
	BootID    string // "" if it cannot be read: nothing is adopted then
}

// binding is the Identity and the file that a state was saved under. Leases are
// adopted only under an equal one.
type binding struct {
	machine string // a digest of Identity.MachineID
	boot    string
	file    fileID
}

func bind(identity Identity, file fileID) binding {
	b := binding{boot: identity.BootID, file: file}
	if identity.MachineID != "" {
		// machine-id(5) asks that the ID itself be kept inside the machine, and
		// state directories end up in backups and bug reports.
		mac := hmac.New(sha256.New, []byte("kazahana state binding"))
		mac.Write([]byte(identity.MachineID))
		b.machine = hex.EncodeToString(mac.Sum(nil)[:16])
	}
	return b
}

// refusal says why leases saved under b are not adopted under present. It is
// empty when they are.
//
// The boot ID is random and new at each boot, so it alone rules out every other
// machine; a missing machine ID is therefore compared like any other value.
func (b binding) refusal(present binding) string {
	switch {
	case present.boot == "":
		return "this host's boot ID cannot be read"
	case b.machine != present.machine:
		return "they were saved on another machine"
	case b.boot != present.boot:
		return "they were saved before the last boot"
	case b.file != present.file:
		return databaseName + " is a copy of the file they were saved in"
	}
	return ""
}

// firstID is the content of the first of the files that holds an ID.
func firstID(paths ...string) string {
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		if id := cleanID(string(content)); id != "" {
			return id
		}
	}
	return ""
}

// cleanID returns "" for a text that is no ID: images ship an empty machine-id,
// or the word that systemd puts there until the first boot is over.
func cleanID(text string) string {
	id := strings.ToLower(strings.TrimSpace(text))
	digits := strings.ReplaceAll(id, "-", "")
	if len(digits) != 32 || strings.Trim(digits, "0123456789abcdef") != "" || strings.Trim(digits, "0") == "" {
		return ""
	}
	return id
}
