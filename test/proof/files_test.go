package proof

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	sqlitefile "github.com/kazahana/kazahana/internal/conn/sqlite"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/sqlite"
	recordsqlite "github.com/kazahana/kazahana/internal/record/sqlite"
)

// database is a real SQLite file of the product's, with its witness, in a directory in
// memory. Its process can be killed at each step of a write. Operators copy the file, and
// put copies back.
type database struct {
	w          *world
	what       string
	path, live string
	open       func() error
	close      func() error
	copies     []copied
	deadly     string // the step at which the process is killed next; "": none
	killed     copied // what the kill left behind; nil: it did not come
	stamps     int64
}

// copied is a copy of the files, by their names' ends.
type copied map[string][]byte

// parts are the files of a database that are copied.
var parts = []string{"", "-wal"}

var errKilled = errors.New("the process was killed")

var steps = []string{sqlitefile.StepBegun, sqlitefile.StepWritten, sqlitefile.StepCommitted, sqlitefile.StepWitnessed}

func newDatabase(w *world, what string) *database {
	dir := filepath.Join(w.dir, what)
	return &database{w: w, what: what, path: filepath.Join(dir, what+".db"), live: filepath.Join(dir, "live")}
}

// at is called at each step of a write.
func (d *database) at(step string) error {
	if step != d.deadly {
		return nil
	}
	d.killed, d.deadly = d.copy(), ""
	for name, content := range d.witnesses() {
		d.killed[name] = content
	}
	return errKilled
}

// around lets the process be killed during the operation, and begins the next one.
func (d *database) around(operation func()) {
	if d.w.rnd.IntN(100) == 0 {
		d.deadly = pick(d.w, steps)
		if d.w.rnd.IntN(4) == 0 {
			d.w.count("SQLite process killed between two operations")
			must(d.at(d.deadly), errKilled)
			d.restart()
		}
	}
	operation()
	d.deadly = ""
	if d.killed != nil {
		d.w.count("SQLite process killed in the middle of a write")
		d.restart()
	}
}

// restart has the next process find what the killed one left.
func (d *database) restart() {
	must(d.close(), nil)
	killed := d.killed
	d.killed = nil
	d.put(killed)
	must(d.open(), nil)
}

// copy is what a program that copies files makes of the database.
func (d *database) copy() copied {
	c := copied{}
	for _, part := range parts {
		b, err := os.ReadFile(d.path + part)
		if err == nil {
			c[part] = b
		} else {
			must(err, fs.ErrNotExist)
		}
	}
	return c
}

// witnesses are the files in the live directory.
func (d *database) witnesses() copied {
	c := copied{}
	entries, err := os.ReadDir(d.live)
	must(err, nil)
	for _, e := range entries {
		path := filepath.Join(d.live, e.Name())
		b, err := os.ReadFile(path)
		must(err, nil)
		c[path] = b
	}
	return c
}

// put replaces the files by the copy. No process may have them open.
func (d *database) put(c copied) {
	for _, part := range []string{"-wal", "-shm"} {
		must(os.RemoveAll(d.path+part), nil)
	}
	for name, content := range c {
		if !filepath.IsAbs(name) {
			name = d.path + name
		}
		must(os.WriteFile(name, content, 0o600), nil)
	}
	d.stamp()
}

// stamp gives the file a time that it never had: a test writes faster than the kernel's clock
// goes on, so that chance would say whether the times of two writes differ.
func (d *database) stamp() {
	d.stamps++
	at := time.Unix(d.stamps, 0)
	must(os.Chtimes(d.path, at, at), nil)
}

// keep has an operator copy the database.
func (d *database) keep() {
	d.copies = append(d.copies[max(0, len(d.copies)-3):len(d.copies):len(d.copies)], d.copy())
}

// fallBack has an operator put an older copy back: over the file, or by a file that gets its
// name. It reports whether there is one.
func (d *database) fallBack() bool {
	if len(d.copies) == 0 {
		return false
	}
	must(d.close(), nil)
	if d.w.without(witnessKept) {
		must(os.RemoveAll(d.live), nil)
	} else if d.w.rnd.IntN(2) == 0 {
		d.w.count("SQLite file replaced by an older copy")
		must(os.Rename(d.path, d.path+".aside"), nil) // so that no file gets its inode
	} else {
		d.w.count("SQLite file overwritten with an older copy")
	}
	d.put(pick(d.w, d.copies))
	must(d.open(), nil)
	must(os.RemoveAll(d.path+".aside"), nil)
	return true
}

// reboot has the memory of the host lost, and with it the witness.
func (d *database) reboot() {
	d.w.count("host of the SQLite file rebooted")
	must(d.close(), nil)
	must(os.RemoveAll(d.live), nil)
	must(d.open(), nil)
}

// event lets something happen to the file, once in so many calls.
func (d *database) event(often int) {
	switch d.w.rnd.IntN(often) {
	case 0, 1, 2:
		d.keep()
	case 3:
		d.reboot()
	case 4, 5:
		if d == d.w.leases && d.fallBack() {
			d.w.trail.befalls("Restore")
			d.w.count("stores restored")
		}
	}
}

// must ends the test where the simulation itself fails.
func must(err, but error) {
	if err != nil && !errors.Is(err, but) {
		panic(err)
	}
}

// leaseFile is the product's provider in a database.
type leaseFile struct {
	*database
	provider.Provider
}

// openLeases has the world lease from a real file.
func (w *world) openLeases(services provider.Services, nowMS func() int64) provider.Provider {
	f := &leaseFile{database: newDatabase(w, "leases")}
	f.database.open = func() error {
		p, err := sqlite.Open(context.Background(), sqlite.Config{
			Path: f.path, LiveDir: f.live, Services: services, NowMS: nowMS, Random: w.rnd.Int64N, At: f.at,
		})
		if err != nil {
			return err
		}
		f.Provider, f.database.close = p, p.Close
		return nil
	}
	must(f.database.open(), nil)
	w.leases, w.databases = f.database, append(w.databases, f.database)
	return f
}

// Acquire implements provider.Provider.
func (f *leaseFile) Acquire(ctx context.Context, req provider.AcquireRequest) (leases []lease.Lease, err error) {
	f.around(func() { leases, err = f.Provider.Acquire(ctx, req) })
	return leases, err
}

// Release implements provider.Provider.
func (f *leaseFile) Release(ctx context.Context, req provider.ReleaseRequest) (err error) {
	f.around(func() { err = f.Provider.Release(ctx, req) })
	return err
}

// Close implements provider.Provider.
func (f *leaseFile) Close() error { return f.database.close() }

// openRecords keeps the records in a real file.
func (s *records) openRecords() {
	d := newDatabase(s.w, "records")
	d.open = func() error {
		file, err := sqlitefile.OpenStore(context.Background(), d.path, sqlitefile.Options{
			NowMS: s.now, LiveDir: d.live, MaxTermMS: lock.MaxTTL.Milliseconds(), At: d.at,
		}, recordsqlite.Tables)
		if err != nil {
			return err
		}
		s.Store, d.close = recordsqlite.New(file), file.Close
		s.known = file.Known
		return nil
	}
	must(d.open(), nil)
	s.file = d
	s.w.databases = append(s.w.databases, d)
}

// closeDatabases ends the processes that have files open.
func (w *world) closeDatabases() {
	for _, d := range slices.Backward(w.databases) {
		if err := d.close(); err != nil {
			w.broken("%s cannot be closed: %v", d.what, err)
		}
	}
}
