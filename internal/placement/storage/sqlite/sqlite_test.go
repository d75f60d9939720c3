package sqlite

import (
	"context"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	sqlitefile "github.com/kazahana/kazahana/internal/conn/sqlite"
	"github.com/kazahana/kazahana/internal/placement/storage"
	"github.com/kazahana/kazahana/internal/placement/storage/storagetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	path := filepath.Join(t.TempDir(), sqlitefile.StoreName)
	storagetest.Run(t, storagetest.Backend{Open: func(t testing.TB) storage.Storage {
		file, err := sqlitefile.OpenStore(context.Background(), path, sqlitefile.Options{}, Tables)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { file.Close() })
		return New(file)
	}})
}
