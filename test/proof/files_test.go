package proof

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/conn/sqlitefile"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	recordsqlite "github.com/kazahana/kazahana/internal/record/sqlite"
	"github.com/kazahana/kazahana/internal/testkit/disktest"
)

// database is a real SQLite file of the product's, with its watermark, in a directory in
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
	written    copied // what there was before a commit that is torn
	frozen     string // the step at which the disk freezes next; "": none
	stamps     int64
}

// copied is a copy of the files, by their names' ends.
type copied map[string][]byte

// parts are the files of a database that are copied: with a log, or with a journal.
var parts = []string{"", "-wal", "-journal"}

var errKilled = errors.New("the process was killed")

var steps = []string{sqlitefile.StepBegun, sqlitefile.StepWritten, sqlitefile.StepCommitted, sqlitefile.StepWatermarked}

// torn is in the middle of a commit's writes.
const torn = "torn"

func newDatabase(w *world, what string) *database {
	dir := filepath.Join(w.dir, what)
	return &database{w: w, what: what, path: filepath.Join(dir, what+".db"), live: filepath.Join(dir, "live")}
}

// at is called at each step of a write.
func (d *database) at(step string) error {
	if d.killed != nil {
		return errKilled // the operation goes on, as no killed process does
	}
	if step == d.frozen {
		d.w.count("SQLite file on a frozen disk")
		d.frozen = ""
		time.Sleep(time.Duration(1+d.w.rnd.IntN(60))*time.Millisecond + time.Nanosecond)
	}
	switch {
	case d.deadly == torn && step == sqlitefile.StepWritten:
		d.written = d.copy()
		return nil
	case d.deadly == torn && step == sqlitefile.StepCommitted:
		d.killed = d.copy()
		if log, ok := d.killed["-wal"]; ok {
			d.killed["-wal"] = d.tear(d.written["-wal"], log)
			d.w.count("SQLite log torn in the middle of a commit")
		} else {
			d.tearMain()
		}
	case step == d.deadly:
		d.killed = d.copy()
	default:
		return nil
	}
	d.killed, d.deadly = d.withWatermarks(d.killed), ""
	return errKilled
}

// tearMain has the commit end while it writes its journal, while it writes the main file, or
// before it ends the journal.
func (d *database) tearMain() {
	before, after := d.written[""], d.killed[""]
	journal := disktest.Journal(before, after)
	switch d.w.rnd.IntN(3) {
	case 0:
		d.w.count("SQLite journal torn in the middle of a commit")
		d.killed[""], journal = before, journal[:d.w.rnd.IntN(len(journal)+1)]
	case 1:
		d.w.count("SQLite file torn in the middle of a commit")
		d.killed[""] = d.tear(before, after)
	default:
		d.w.count("SQLite journal that was not ended")
	}
	d.killed["-journal"] = journal
}

// sector is what a disk writes as a whole.
const sector = 512

// tear is a file of which a disk has written some sectors, or a process all bytes to one.
func (d *database) tear(before, after []byte) []byte {
	if d.w.rnd.IntN(2) == 0 {
		n := d.w.rnd.IntN(len(after) + 1)
		return slices.Concat(after[:n], before[min(n, len(before)):])
	}
	mixed := make([]byte, len(after)) // what no write has reached is zero
	copy(mixed, before)
	for at := 0; at < len(mixed); at += sector {
		if d.w.rnd.IntN(2) == 0 {
			copy(mixed[at:min(at+sector, len(mixed))], after[at:])
		}
	}
	return mixed
}

// around lets the process be killed during the operation, and begins the next one.
func (d *database) around(operation func()) {
	switch d.w.rnd.IntN(100) {
	case 0:
		d.deadly = pick(d.w, steps)
		if d.w.rnd.IntN(4) == 0 {
			d.w.count("SQLite process killed between two operations")
			must(d.at(d.deadly), errKilled)
			d.restart()
		}
	case 1:
		d.deadly = torn
	case 2:
		d.frozen = pick(d.w, steps)
	}
	operation()
	d.w.streams((*stream).collect) // time may have passed
	d.deadly, d.frozen = "", ""
	if d.killed != nil {
		d.w.count("SQLite process killed in the middle of a write")
		d.restart()
	}
}

// restart has the next process find what the killed one left.
func (d *database) restart() {
	killed := d.killed
	d.killed = nil
	must(d.close(), nil)
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

// withWatermarks adds the files in the live directory.
func (d *database) withWatermarks(c copied) copied {
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
	for _, part := range parts[1:] {
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
// name. Or the disk loses bytes that it said were written. It reports whether there is a copy.
func (d *database) fallBack() bool {
	if len(d.copies) == 0 {
		return false
	}
	now := d.withWatermarks(d.copy())
	must(d.close(), nil) // which writes the log into the file
	older := pick(d.w, d.copies)
	switch {
	case d.w.without(watermarkKept):
		must(os.RemoveAll(d.live), nil)
	case d.w.rnd.IntN(4) > 0 && d.loseWrites(now):
		return true
	case d.w.rnd.IntN(2) == 0:
		d.w.count("SQLite file replaced by an older copy")
		must(os.Rename(d.path, d.path+".aside"), nil) // so that no file gets its inode
	default:
		d.w.count("SQLite file overwritten with an older copy")
	}
	d.put(older)
	must(d.open(), nil)
	must(os.RemoveAll(d.path+".aside"), nil)
	d.keep() // so that the disk can lose the writes from here on
	return true
}

// loseWrites has the disk lose some of the log's bytes since the latest copy was made. It does
// nothing where the log has begun anew since.
func (d *database) loseWrites(now copied) bool {
	older := d.copies[len(d.copies)-1]
	if len(now["-wal"]) == 0 || !bytes.Equal(now[""], older[""]) {
		return false
	}
	d.w.count("SQLite log lost what was written")
	now["-wal"] = d.tear(older["-wal"], now["-wal"])
	d.put(now)
	must(d.open(), nil)
	return true
}

// reboot has the memory of the host lost, and with it the watermark.
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
		if f := d.w.leases; f != nil && f.database == d {
			f.fallBack()
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
		p, err := backend.OpenLeaseFile(context.Background(), backend.LeaseFile{
			Path: f.path, LiveDir: f.live, Services: services, NowMS: nowMS, Random: w.rnd.Int64N, At: f.at,
		})
		if err != nil {
			return err
		}
		f.Provider, f.database.close = p, p.Close
		return nil
	}
	must(f.database.open(), nil)
	w.leases, w.databases = f, append(w.databases, f.database)
	return f
}

// fallBack has the file be as it was. It is a restored store only if a record differs: the disk
// may lose a part of a log that is never read.
func (f *leaseFile) fallBack() {
	before := f.records()
	if f.database.fallBack() && !reflect.DeepEqual(f.records(), before) {
		f.w.trail.befalls("Restore")
		f.w.count("stores restored")
	}
}

func (f *leaseFile) records() []provider.Record {
	records, err := f.List(context.Background(), "")
	must(err, nil)
	return records
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

// Extend implements provider.Provider.
func (f *leaseFile) Extend(ctx context.Context, req provider.ExtendRequest) (longer lease.Lease, err error) {
	f.around(func() { longer, err = f.Provider.Extend(ctx, req) })
	return longer, err
}

// Close implements provider.Provider.
func (f *leaseFile) Close() error { return f.database.close() }

// openRecords keeps the records in a real file.
func (s *records) openRecords() {
	d := newDatabase(s.w, "records")
	d.open = func() error {
		file, err := sqlitefile.OpenStore(context.Background(), d.path, sqlitefile.Options{
			NowMS: s.now, LiveDir: d.live, MaxTermMS: s.area.MaxGrantMS, At: d.at,
		}, recordsqlite.Tables)
		if err != nil {
			return err
		}
		s.Store, d.close = recordsqlite.New(file, s.area), file.Close
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
