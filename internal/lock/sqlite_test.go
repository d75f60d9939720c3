package lock_test

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	sqlitefile "github.com/kazahana/kazahana/internal/conn/sqlite"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/lock/locktest"
	"github.com/kazahana/kazahana/internal/record/sqlite"
)

// inFile closes the file with the store.
type inFile struct {
	*lock.Records
	records *sqlite.Store
	file    *sqlitefile.File
}

func (o inFile) Close() error { return o.file.Close() }

func openFile(path string, nowMS func() int64) (inFile, error) {
	file, err := sqlitefile.OpenStore(context.Background(), path, sqlitefile.Options{NowMS: nowMS}, sqlite.Tables)
	if err != nil {
		return inFile{}, err
	}
	records := sqlite.New(file)
	return inFile{lock.OnRecords(records), records, file}, nil
}

func TestSQLite(t *testing.T) {
	locktest.Run(t, func(t *testing.T) locktest.Backend {
		dir, err := os.MkdirTemp("/dev/shm", "kazahana-test-") // it need not survive anything
		if err != nil {
			dir = t.TempDir()
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		path := filepath.Join(dir, sqlitefile.StoreName)
		var now atomic.Int64
		now.Store(startMS)
		return locktest.Backend{
			Open:    func() (lock.Store, error) { return openFile(path, now.Load) },
			Advance: func(d time.Duration) { now.Add(d.Milliseconds()) },
			Restart: func() error { return nil }, // all is in the file, which every Open opens anew
			Sweep: func() error {
				s, err := openFile(path, now.Load)
				if err != nil {
					return err
				}
				defer s.Close()
				return sweep(s.records)
			},
		}
	})
}
