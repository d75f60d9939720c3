package config

import (
	"errors"
	"path/filepath"
	"strconv"
	"strings"
)

// The parts that the daemon's and the clients' paths have in common.
const (
	socketName      = "kazahanad.sock"
	directoryName   = "kazahana"
	systemSocketDir = "/run/kazahana"
	systemStateDir  = "/var/lib/kazahana"
)

// DaemonSocket chooses the socket of a daemon that was not told one: in
// systemd's runtime directory, in the user's, in the system's for root, and
// below /tmp as the last resort, which inTmp reports.
func DaemonSocket(lookup Lookup, uid int) (path string, inTmp bool) {
	if dir := firstEntry(lookup, "RUNTIME_DIRECTORY"); dir != "" {
		return filepath.Join(dir, socketName), false
	}
	if dir := absolute(lookup, "XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, directoryName, socketName), false
	}
	if uid == 0 {
		return filepath.Join(systemSocketDir, socketName), false
	}
	return tmpSocket(uid), true
}

// DaemonStateDir chooses the state directory of a daemon that was not told one.
func DaemonStateDir(lookup Lookup, uid int) (string, error) {
	if dir := firstEntry(lookup, "STATE_DIRECTORY"); dir != "" {
		return dir, nil
	}
	if uid == 0 {
		return systemStateDir, nil
	}
	if dir := absolute(lookup, "XDG_STATE_HOME"); dir != "" {
		return filepath.Join(dir, directoryName), nil
	}
	if home := absolute(lookup, "HOME"); home != "" {
		return filepath.Join(home, ".local", "state", directoryName), nil
	}
	return "", errors.New("state_dir is not set, and neither XDG_STATE_HOME nor HOME names a directory for it: set state_dir (none goes without)")
}

// firstEntry reads a variable of systemd's that lists directories, colon
// separated: several if the unit asks for several.
func firstEntry(lookup Lookup, name string) string {
	text, _ := lookup(name)
	first, _, _ := strings.Cut(text, ":")
	return first
}

// absolute reads a directory variable. A relative path is invalid by the XDG
// base directory specification, and to be ignored.
func absolute(lookup Lookup, name string) string {
	if text, _ := lookup(name); filepath.IsAbs(text) {
		return text
	}
	return ""
}

func tmpSocket(uid int) string {
	return filepath.Join("/tmp", directoryName+"-"+strconv.Itoa(uid), socketName)
}
