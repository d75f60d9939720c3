package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/operator/doctor"
	"github.com/kazahana/kazahana/internal/state"
)

// doors are the listeners where a daemon with these settings gives IDs beside its socket.
func doors(settings *config.Serve) []beside {
	return slices.DeleteFunc(besides(settings), func(b beside) bool { return b.key == "admin_listen" })
}

// doors asks at the doors of the daemon that runs.
func (x *examination) doors() {
	if x.status == nil || x.settings == nil {
		return
	}
	ctx, cancel := context.WithTimeout(x.system.ctx, doctorTimeout)
	defer cancel()
	for _, door := range doors(x.settings) {
		x.add(doctor.JudgeDoor(doctor.ProbeDoor(ctx, door.key, door.address), x.peer.PID, x.peer.UID))
	}
}

// checkDoors returns an error if the directory of a door's socket can neither be used nor
// be made by this user.
func checkDoors(settings *config.Serve) error {
	for _, door := range doors(settings) {
		path, isPath := strings.CutPrefix(door.address, "unix:")
		if !isPath {
			continue
		}
		if err := state.CheckDir(filepath.Dir(path), "choose another path, or check as the daemon's user"); err != nil {
			return fmt.Errorf("%s: %w", door.key, err)
		}
	}
	return nil
}
