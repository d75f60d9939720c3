package config

import (
	"errors"
	"path/filepath"

	"github.com/kazahana/kazahana/internal/address"
)

const (
	directoryName  = "kazahana"
	systemStateDir = "/var/lib/kazahana"
)

// DaemonStateDir chooses the state directory of a daemon that was not told one.
func DaemonStateDir(lookup Lookup, uid int) (string, error) {
	if dir := address.FirstEntry(lookup, "STATE_DIRECTORY"); dir != "" {
		return dir, nil
	}
	if uid == 0 {
		return systemStateDir, nil
	}
	if dir := address.Absolute(lookup, "XDG_STATE_HOME"); dir != "" {
		return filepath.Join(dir, directoryName), nil
	}
	if home := address.Absolute(lookup, "HOME"); home != "" {
		return filepath.Join(home, ".local", "state", directoryName), nil
	}
	return "", errors.New("state_dir is not set, and neither XDG_STATE_HOME nor HOME names a directory for it: set state_dir (none goes without)")
}
