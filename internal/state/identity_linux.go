package state

import (
	"cmp"
	"os"
	"strings"
)

func hostIdentity() Identity {
	return Identity{
		MachineID: cmp.Or(readID("/etc/machine-id"), readID("/var/lib/dbus/machine-id")),
		BootID:    readID("/proc/sys/kernel/random/boot_id"),
	}
}

// readID returns the ID in a file; "" where there is none, or only zeros.
func readID(path string) string {
	content, _ := os.ReadFile(path)
	id := strings.TrimSpace(string(content))
	if strings.Trim(id, "0-") == "" {
		return ""
	}
	return id
}
