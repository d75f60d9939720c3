package state

import (
	"errors"
	"fmt"
	"io/fs"
)

const (
	stateName = "state"
	stateKind = "kazahana-state"

	stateRemedy = "put the right file back, or move it away: the daemon then starts under a new identity, without its leases, and takes the timeline from the next one"
)

// stateFile survives a power failure. It holds nothing that makes an ID, so a
// restored copy cannot repeat one.
type stateFile struct {
	// Folder is the name of this state directory's folder in the live directory.
	Folder string `json:"identity"`
	// Live is the live directory of the last daemon, for commands that read it.
	Live     string              `json:"liveDir,omitempty"`
	Services map[string]document `json:"services"`
}

// readState reads the state file; content is nil where there is none.
func readState(d Dir) (f stateFile, content []byte, id FileID, err error) {
	content, id, err = d.Read(stateName)
	if errors.Is(err, fs.ErrNotExist) {
		return stateFile{Services: map[string]document{}}, nil, id, nil
	}
	if err != nil {
		return f, nil, id, err
	}
	path := joinPath(d, stateName)
	if err := unseal(path, stateKind, stateRemedy, content, &f); err != nil {
		return f, nil, id, err
	}
	if err := f.validate(); err != nil {
		return f, nil, id, &FileError{Path: path, Problem: "is damaged", Err: err, Remedy: stateRemedy}
	}
	return f, content, id, nil
}

func (f stateFile) validate() error {
	if !isFolderName(f.Folder) {
		return fmt.Errorf("the identity %q is not %d hex digits", f.Folder, folderNameLen)
	}
	for name, doc := range f.Services {
		if _, err := doc.saved(); err != nil {
			return fmt.Errorf("service %q: %w", name, err)
		}
		if len(doc.Held) > 0 || doc.Cached != nil {
			return fmt.Errorf("service %q: it has a lease, which belongs in the live directory", name)
		}
		if doc.FloorMS < 0 || doc.FloorMS > maxMark {
			return fmt.Errorf("service %q: a floor of %d ms is not a valid time", name, doc.FloorMS)
		}
	}
	return nil
}
