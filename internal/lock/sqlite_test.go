package lock_test

import (
	"path/filepath"
	"testing"

	"github.com/kazahana/kazahana/internal/conn/sqlitefile"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/lock/locktest"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/sqlite"
	"github.com/kazahana/kazahana/internal/testkit/ring"
	"github.com/kazahana/kazahana/internal/testkit/sqlitetest"
)

// inFile closes the file with the store.
type inFile struct {
	*lock.Records
	close func() error
}

func (o inFile) Close() error { return o.close() }

func openFile(path string) (inFile, error) {
	file, end, err := sqlitetest.Open(path, sqlitefile.Options{})
	if err != nil {
		return inFile{}, err
	}
	return inFile{lock.OnRecords(sqlite.New(file, record.Area{})), end}, nil
}

func TestSQLite(t *testing.T) {
	ring.All(t)
	locktest.Run(t, func(t *testing.T) locktest.Backend {
		path := filepath.Join(ring.Dir(t), sqlitefile.StoreName)
		return locktest.Backend{
			Open:    func() (lock.Store, error) { return openFile(path) },
			Restart: func() error { return nil }, // all is in the file, which the last client has closed
		}
	})
}
