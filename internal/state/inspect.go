package state

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
)

// Report is the content of the local state at one moment.
type Report struct {
	Dir      string // absolute
	Identity string
	Live     string // this state directory's folder in the live directory; "": none
	Holder   *Holder
	Services []ServiceReport // by name

	// Missing says that Live does not exist, as after a boot.
	Missing bool
	// Damage is an error about the files in Live, or nil.
	Damage error
	// Refusal says why a daemon that starts now would not adopt the leases; ""
	// if it would, and while a daemon runs.
	Refusal string

	free bool // no daemon uses Live, or there is none
}

// ServiceReport is the state of one service. The secrets of its leases are blank,
// since reports are printed and logged.
type ServiceReport struct {
	Name  string
	Floor int64 // Unix ms: where IDs would go on after a power failure
	Mark  int64 // Unix ms; 0: it never made an ID
	Saved Saved
}

// Inspect reads the local state without changing it, also while a daemon uses it. If
// opts names no live directory, it reads the last daemon's.
//
// Errors: *FileError about the state directory. An error about the live state is in
// the report.
func Inspect(path string, opts Options) (_ Report, err error) {
	disk, file, err := openUsed(path, &opts)
	if err != nil {
		return Report{}, err
	}
	defer func() { err = errors.Join(err, disk.Close()) }()
	report := Report{Dir: disk.path, Identity: file.Folder}
	if report.Holder, err = disk.Holder(); err != nil {
		return Report{}, err
	}
	s := newState(opts, disk, nil)
	s.learn(file)
	saved, marks := report.look(opts, file, disk)
	for name, content := range saved {
		s.known(name).saved = content.withoutSecrets()
	}
	s.learnMarks(marks)
	for _, name := range slices.Sorted(maps.Keys(s.services)) {
		sv := s.services[name]
		report.Services = append(report.Services, ServiceReport{
			Name: name, Floor: file.Services[name].FloorMS, Mark: sv.Mark(), Saved: sv.saved.Settled(sv.Mark()),
		})
	}
	return report, nil
}

// look describes the live state, and returns its content.
func (r *Report) look(opts Options, file stateFile, disk Dir) (saved map[string]Saved, marks map[string]int64) {
	if opts.Live == "" {
		r.free = true
		return nil, readMarks(disk)
	}
	r.Live = filepath.Join(opts.Live, file.Folder)
	dir, err := openDir(r.Live, false, "")
	if err != nil {
		if r.Missing = errors.Is(err, fs.ErrNotExist); !r.Missing {
			r.Damage = err
		}
		return nil, nil
	}
	defer dir.Close()
	l, err := newLive(dir, opts.identity())
	if err != nil {
		r.Damage = err
		return nil, nil
	}
	f := l.look(false)
	r.Damage = f.damage
	if r.Holder == nil {
		r.Refusal = f.refusal
		user, err := dir.Holder()
		if r.free = err == nil && user == nil; user != nil {
			r.Refusal = fmt.Sprintf("the daemon of %s uses them: this state directory is a copy of its own, and a daemon would begin here under a new identity", cmp.Or(readHolder(dir).Path, "another state directory"))
		}
	}
	if f.marks != nil {
		marks = f.marks.all()
		_ = f.marks.m.Unmap()
	}
	return f.saved, marks
}
