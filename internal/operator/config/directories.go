package config

import (
	"errors"
	"fmt"
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
	dir, err := userStateDir(lookup, uid)
	if err != nil {
		err = fmt.Errorf("state_dir is not set, and %w: set state_dir (none goes without)", err)
	}
	return dir, err
}

// userStateDir is the default of a daemon without a unit.
func userStateDir(lookup Lookup, uid int) (string, error) {
	if uid == 0 {
		return systemStateDir, nil
	}
	for _, home := range []struct{ variable, below string }{{"XDG_STATE_HOME", ""}, {"HOME", ".local/state"}} {
		if dir := address.Absolute(lookup, home.variable); dir != "" {
			return filepath.Join(dir, home.below, directoryName), nil
		}
	}
	return "", errors.New("neither XDG_STATE_HOME nor HOME names a directory for it")
}

// livePlaces are the default live directories, best first. The daemon takes the
// first that is on a file system in memory.
func livePlaces(lookup Lookup, uid int) (places []string) {
	for _, dir := range address.Entries(lookup, "RUNTIME_DIRECTORY") {
		if strings.HasSuffix(dir, address.LiveSuffix) {
			places = append(places, dir)
		}
	}
	if dir, _ := address.RuntimeDir(lookup, uid); dir != "" {
		places = append(places, filepath.Join(dir, directoryName, "live"))
	}
	if uid == 0 {
		places = append(places, filepath.Join("/run", directoryName, "live"))
	}
	return append(places, filepath.Join("/dev/shm", directoryName+"-"+strconv.Itoa(uid)))
}

// chooseDirectories fills in the defaults that depend on the user and the
// environment. inPod says why there is no default provider inside Kubernetes.
func (l *Leases) chooseDirectories(lookup Lookup, uid int, from origins, inPod string) error {
	if !from.Given("live_dir") {
		l.livePlaces = livePlaces(lookup, uid)
	}
	if err := l.chooseStateDir(lookup, uid, from); err != nil {
		return err
	}
	if from.Given("provider") {
		return nil
	}
	if err := noDefaultInPod(lookup, inPod); err != nil {
		return err
	}
	if l.StateDir == "" {
		return fmt.Errorf("%s leaves the default provider no place for its file: set provider", from.Cite("state_dir"))
	}
	return l.defaultProvider(l.StateDir, from.Cite("state_dir"))
}

func (l *Leases) chooseStateDir(lookup Lookup, uid int, from origins) (err error) {
	if !from.Given("state_dir") {
		l.StateDir, err = daemonStateDir(lookup, uid)
	}
	return err
}

func noDefaultInPod(lookup Lookup, why string) error {
	if _, inside := lookup("KUBERNETES_SERVICE_HOST"); inside {
		return errors.New("provider is not set, and inside Kubernetes there is no default: " + why)
	}
	return nil
}

// defaultProvider is a SQLite file in the directory, which the error calls what.
func (l *Leases) defaultProvider(dir, what string) error {
	if strings.ContainsAny(dir, "?#%") {
		return fmt.Errorf("%s holds a character that a provider URL cannot: set provider", what)
	}
	l.Provider = "sqlite:" + dir + "/leases.db"
	return nil
}

// chooseBesideDaemon is chooseDirectories for a program with package embed. The program
// names a state directory of its own. Its default provider is the file of a daemon that
// the same user would run, so that all programs of the user on this host, and that
// daemon, take their machine IDs from one file.
func (l *Leases) chooseBesideDaemon(lookup Lookup, uid int, from origins, inPod string) error {
	if !from.Given("live_dir") {
		l.livePlaces = livePlaces(lookup, uid)
	}
	if !from.Given("state_dir") {
		return errors.New("Config.StateDir is not set: name a directory that only this process uses, or write none to keep no state")
	}
	if from.Given("provider") {
		return nil
	}
	if err := noDefaultInPod(lookup, inPod); err != nil {
		return err
	}
	dir, err := userStateDir(lookup, uid)
	if err != nil {
		return fmt.Errorf("Config.Provider is not set, and %w: set Provider", err)
	}
	return l.defaultProvider(dir, dir)
}
