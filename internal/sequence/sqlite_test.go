package sequence_test

import (
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/conn/sqlitefile"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/sqlite"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/sequence/sequencetest"
	"github.com/kazahana/kazahana/internal/testkit/ring"
	"github.com/kazahana/kazahana/internal/testkit/sqlitetest"
)

// inFile closes the file with the store.
type inFile struct {
	*sequence.Records
	close func() error
}

func (o inFile) Close() error { return o.close() }

func openFile(path string, nowMS func() int64) (inFile, error) {
	file, end, err := sqlitetest.Open(path, sqlitefile.Options{NowMS: nowMS})
	if err != nil {
		return inFile{}, err
	}
	return inFile{sequence.OnRecords(sqlite.New(file, record.Area{})), end}, nil
}

func TestSQLiteConformance(t *testing.T) {
	ring.All(t)
	sequencetest.Run(t, func(t *testing.T) sequencetest.Target {
		var clock atomic.Int64
		clock.Store(time.Now().UnixMilli())
		path := filepath.Join(ring.Dir(t), sqlitefile.StoreName)
		return sequencetest.Target{
			Open:    func() (sequence.Store, error) { return openFile(path, clock.Load) },
			Advance: func(d time.Duration) { clock.Add(d.Milliseconds()) },
		}
	})
}
