// Package address knows the default place of the daemon's socket, and where clients look
// for it.
package address

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// The parts that the daemon's and the clients' paths have in common.
const (
	socketName      = "kazahanad.sock"
	directoryName   = "kazahana"
	systemSocketDir = "/run/kazahana"
)

// Lookup reads an environment variable; os.LookupEnv is one.
type Lookup = func(name string) (string, bool)

var schemeStart = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*://`)

// Daemon is the default socket of a daemon: in systemd's runtime directory, in the
// user's, in the system's for root, and below /tmp as the last resort, which inTmp
// reports.
func Daemon(lookup Lookup, uid int) (path string, inTmp bool) {
	for _, dir := range Entries(lookup, "RUNTIME_DIRECTORY") {
		if !strings.HasSuffix(dir, LiveSuffix) {
			return filepath.Join(dir, socketName), false
		}
	}
	if dir, _ := RuntimeDir(lookup, uid); dir != "" {
		return filepath.Join(dir, directoryName, socketName), false
	}
	if uid == 0 {
		return filepath.Join(systemSocketDir, socketName), false
	}
	return InTmp(uid), true
}

// RuntimeDir is the user's runtime directory, "" if there is none. The error says why the
// directory that XDG_RUNTIME_DIR names is not used: su and sudo -E keep another user's.
func RuntimeDir(lookup Lookup, uid int) (string, error) {
	dir := Absolute(lookup, "XDG_RUNTIME_DIR")
	if dir == "" {
		return "", nil
	}
	if err := trusted(filepath.Clean(dir), uid); err != nil {
		return "", fmt.Errorf("XDG_RUNTIME_DIR: %w", err)
	}
	return dir, nil
}

// LiveSuffix ends the name of the runtime directory for the daemon's live state.
const LiveSuffix = "-live"

// Entries reads a variable of systemd that lists directories, separated by colons.
func Entries(lookup Lookup, name string) []string {
	text, _ := lookup(name)
	return slices.DeleteFunc(strings.Split(text, ":"), func(dir string) bool { return dir == "" })
}

// Absolute reads a directory variable. It ignores a relative path, as the XDG base
// directory specification demands.
func Absolute(lookup Lookup, name string) string {
	if text, _ := lookup(name); filepath.IsAbs(text) {
		return text
	}
	return ""
}

// InTmp is the socket of last resort, in a directory that is the user's alone.
func InTmp(uid int) string {
	return filepath.Join("/tmp", directoryName+"-"+strconv.Itoa(uid), socketName)
}

// maxSocketPath is the longest path that fits, with its closing zero, into the system's
// sockaddr_un.
func maxSocketPath() int {
	if runtime.GOOS == "darwin" {
		return 103
	}
	return 107
}

// Parse returns the path of a Unix socket that is written as PATH, unix:PATH or
// unix:///PATH. The path is taken as it is: relative to the working directory, with any
// percent sign. White space around the text does not count. Abstract sockets are refused:
// they have no permissions. The errors leave out the text, which may be a URL with a
// password. testdata/socket_addresses.json has what all clients must read.
func Parse(text string) (string, error) {
	path := strings.Trim(text, " \t\r\n")
	if schemeStart.MatchString(path) && !hasScheme(path) {
		return "", errors.New("is not a Unix socket: write its path, or unix:///PATH")
	}
	if hasScheme(path) {
		path = path[len(scheme):]
		if rest, ok := strings.CutPrefix(path, "//"); ok {
			if path = rest; rest != "" && rest[0] != '/' {
				return "", errors.New("names a host: write unix:///PATH, with three slashes, or just the path")
			}
		}
	}
	switch {
	case path == "":
		return "", errors.New("is empty: write the path of a Unix socket")
	case path[0] == '@' || path[0] == 0:
		return "", errors.New("is an abstract socket, which every user can open: write a path")
	case strings.Contains(path, "\x00"):
		return "", errors.New("holds a zero byte: write the path of a Unix socket")
	case path == "~" || strings.HasPrefix(path, "~/"):
		return "", errors.New("begins with ~, which only a shell replaces: write the whole path")
	case strings.HasSuffix(path, "/"):
		return "", errors.New("is a directory: write the path of a Unix socket")
	case len(path) > maxSocketPath():
		return "", fmt.Errorf("is %d bytes long, and the system allows a socket's path %d", len(path), maxSocketPath())
	}
	return path, nil
}

const scheme = "unix:"

func hasScheme(text string) bool {
	return len(text) >= len(scheme) && strings.EqualFold(text[:len(scheme)], scheme)
}
