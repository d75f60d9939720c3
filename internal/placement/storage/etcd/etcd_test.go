package etcd

import (
	"os"
	"testing"

	etcdconn "github.com/kazahana/kazahana/internal/conn/etcd"
	"github.com/kazahana/kazahana/internal/placement/storage"
	"github.com/kazahana/kazahana/internal/placement/storage/storagetest"
	"github.com/kazahana/kazahana/internal/testkit/etcdtest"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

func TestConformance(t *testing.T) {
	cfg := etcdtest.Shared(t)
	storagetest.Run(t, storagetest.Backend{Slow: true, Open: func(t testing.TB) storage.Storage {
		conn, err := etcdconn.Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return New(conn)
	}})
}
