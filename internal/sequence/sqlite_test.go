package sequence_test

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	sqlitefile "github.com/kazahana/kazahana/internal/conn/sqlite"
	"github.com/kazahana/kazahana/internal/record/sqlite"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/sequence/sequencetest"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// inFile closes the file with the store.
type inFile struct {
	*sequence.Records
	file *sqlitefile.File
}

func (o inFile) Close() error { return o.file.Close() }

func openFile(path string, nowMS func() int64) (inFile, error) {
	file, err := sqlitefile.OpenStore(context.Background(), path, sqlitefile.Options{NowMS: nowMS}, sqlite.Tables)
	if err != nil {
		return inFile{}, err
	}
	return inFile{sequence.OnRecords(sqlite.New(file)), file}, nil
}

func newPath(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "kazahana-test-") // it need not survive anything
	if err != nil {
		dir = t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, sqlitefile.StoreName)
}

func TestSQLiteConformance(t *testing.T) {
	ring.All(t)
	sequencetest.Run(t, func(t *testing.T) sequencetest.Target {
		var clock atomic.Int64
		clock.Store(time.Now().UnixMilli())
		path := newPath(t)
		return sequencetest.Target{
			Open:    func() (sequence.Store, error) { return openFile(path, clock.Load) },
			Advance: func(d time.Duration) { clock.Add(d.Milliseconds()) },
		}
	})
}
