package state

import (
	"errors"
	"maps"
	"slices"
)

// Report is what a state directory holds at one moment.
type Report struct {
	Dir      string // absolute
	Holder   *Holder
	Services []ServiceReport // by name

	// Refusal says why a daemon that starts now would not adopt the leases; ""
	// if it would. While a daemon runs it is always "".
	Refusal string
}

// ServiceReport is what is kept for one service. The secrets of its leases are
// blank: reports are for people and logs.
type ServiceReport struct {
	Name  string
	Mark  int64 // Unix ms; 0: never made an ID
	Saved Saved
}

// Inspect reads a state directory without changing what it says, also while a
// daemon uses it.
//
// Errors: *FileError.
func Inspect(path string, opts Options) (_ Report, err error) {
	dir, _, err := openDirectory(path, false)
	if err != nil {
		return Report{}, err
	}
	if err := dir.mustHoldState(); err != nil {
		return Report{}, err
	}
	report := Report{Dir: dir.path}
	if report.Holder, err = dir.holder(); err != nil {
		return Report{}, err
	}
	// state.db before marks: a service that appears in between has its entry in
	// marks before its row.
	found, id, err := readDatabase(dir)
	if err != nil {
		return Report{}, err
	}
	var m *marks
	if exists, err := dir.exists(marksName); err != nil {
		return Report{}, err
	} else if exists {
		if m, err = openMarks(dir, false); err != nil {
			return Report{}, err
		}
		defer func() { err = errors.Join(err, m.close()) }()
	}
	if err := checkMarks(dir, m, found.services); err != nil {
		return Report{}, err
	}
	if report.Holder == nil && found.hasLeases() {
		report.Refusal, _ = adoption(found, bind(opts.identity(), id), m)
	}
	names := maps.Clone(found.services)
	if m != nil {
		for name := range m.names {
			names[name] = found.services[name]
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		mark, _ := m.get(name)
		report.Services = append(report.Services, ServiceReport{Name: name, Mark: mark, Saved: names[name].withoutSecrets()})
	}
	return report, nil
}

// readDatabase reads state.db, or nothing where there is none.
func readDatabase(dir directory) (found contents, id fileID, err error) {
	exists, err := dir.exists(databaseName)
	if err != nil || !exists {
		return contents{services: map[string]Saved{}}, id, err
	}
	db, err := openDatabase(dir, false)
	if err != nil {
		return found, id, err
	}
	defer func() { err = errors.Join(err, db.close()) }()
	found, err = db.read()
	return found, db.id, err
}
