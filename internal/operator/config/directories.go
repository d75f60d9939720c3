package config

import (
	"errors"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/kazahana/kazahana/internal/address"
)

const (
	directoryName  = "kazahana"
	systemStateDir = "/var/lib/kazahana"
)

// daemonStateDir is the default state directory of a daemon.
func daemonStateDir(lookup Lookup, uid int) (string, error) {
	if dirs := address.Entries(lookup, "STATE_DIRECTORY"); len(dirs) > 0 {
		return dirs[0], nil
	}
	if dir := userStateDir(lookup, uid); dir != "" {
		return dir, nil
	}
	return "", errors.New("state_dir is not set, and neither XDG_STATE_HOME nor HOME names a directory for it: set state_dir (none goes without)")
}

// userStateDir is the default of a daemon without a unit; "" if there is none.
func userStateDir(lookup Lookup, uid int) string {
	if uid == 0 {
		return systemStateDir
	}
	if dir := address.Absolute(lookup, "XDG_STATE_HOME"); dir != "" {
		return filepath.Join(dir, directoryName)
	}
	if home := address.Absolute(lookup, "HOME"); home != "" {
		return filepath.Join(home, ".local", "state", directoryName)
	}
	return ""
}

// livePlaces are the default live directories, best first. The daemon takes the
// first that is on a file system in memory.
func livePlaces(lookup Lookup, uid int) (places []string) {
	for _, dir := range address.Entries(lookup, "RUNTIME_DIRECTORY") {
		if strings.HasSuffix(dir, address.LiveSuffix) {
			places = append(places, dir)
		}
	}
	if dir := address.Absolute(lookup, "XDG_RUNTIME_DIR"); dir != "" {
		places = append(places, filepath.Join(dir, directoryName, "live"))
	}
	if uid == 0 {
		places = append(places, filepath.Join("/run", directoryName, "live"))
	}
	return append(places, filepath.Join("/dev/shm", directoryName+"-"+strconv.Itoa(uid)))
}
