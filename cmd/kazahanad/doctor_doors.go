package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/operator/doctor"
)

// doors are the addresses, by key, where a daemon with these settings gives IDs beside its
// socket.
func doors(settings *config.Serve) (all [][2]string) {
	for _, door := range [][2]string{{"memcached_listen", settings.MemcachedListen}, {"http_listen", settings.HTTPListen}} {
		if door[1] != "" {
			all = append(all, door)
		}
	}
	return all
}

// doors asks at the doors of the daemon that runs.
func (x *examination) doors() {
	if x.status == nil || x.settings == nil {
		return
	}
	ctx, cancel := context.WithTimeout(x.system.ctx, doctorTimeout)
	defer cancel()
	for _, door := range doors(x.settings) {
		x.add(doctor.JudgeDoor(doctor.ProbeDoor(ctx, door[0], door[1]), x.peer.PID, x.peer.UID))
	}
}

// checkDoors returns an error if the directory of a door's socket can neither be used nor
// be made by this user.
func checkDoors(settings *config.Serve) error {
	for _, door := range doors(settings) {
		path, isPath := strings.CutPrefix(door[1], "unix:")
		if !isPath {
			continue
		}
		dir := filepath.Dir(path)
		for _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) && dir != "/"; _, err = os.Stat(dir) {
			dir = filepath.Dir(dir)
		}
		info, err := os.Stat(dir)
		if err == nil && !info.IsDir() {
			err = fmt.Errorf("%s is not a directory", dir)
		} else if err == nil && unix.Access(dir, unix.W_OK|unix.X_OK) != nil {
			err = fmt.Errorf("user %d cannot write to the directory %s", os.Geteuid(), dir)
		}
		if err != nil {
			return fmt.Errorf("%s: %w; choose another path, or check as the daemon's user", door[0], err)
		}
	}
	return nil
}
