package storage_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	etcdconn "github.com/kazahana/kazahana/internal/conn/etcd"
	redisconn "github.com/kazahana/kazahana/internal/conn/redis"
	sqlitefile "github.com/kazahana/kazahana/internal/conn/sqlite"
	"github.com/kazahana/kazahana/internal/placement/storage"
	"github.com/kazahana/kazahana/internal/placement/storage/storagetest"
	"github.com/kazahana/kazahana/internal/record/etcd"
	"github.com/kazahana/kazahana/internal/record/redis"
	"github.com/kazahana/kazahana/internal/record/sqlite"
	"github.com/kazahana/kazahana/internal/testkit/etcdtest"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

func TestSQLite(t *testing.T) {
	path := filepath.Join(t.TempDir(), sqlitefile.StoreName)
	storagetest.Run(t, storagetest.Backend{Slow: true, Open: func(t testing.TB) storage.Storage {
		file, err := sqlitefile.OpenStore(context.Background(), path, sqlitefile.Options{}, sqlite.Tables)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { file.Close() })
		return storage.OnRecords(sqlite.New(file))
	}})
}

func TestEtcd(t *testing.T) {
	cfg := etcdtest.Shared(t)
	storagetest.Run(t, storagetest.Backend{Slow: true, Open: func(t testing.TB) storage.Storage {
		conn, err := etcdconn.Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		records := etcd.New(conn)
		t.Cleanup(func() { records.Close(); conn.Close() })
		return storage.OnRecords(records)
	}})
}

func TestRedis(t *testing.T) {
	cfg := redistest.New(t).Config()
	storagetest.Run(t, storagetest.Backend{Open: func(t testing.TB) storage.Storage {
		client, err := redisconn.Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		records := redis.New(client, redis.Options{MaxTerm: time.Minute})
		t.Cleanup(func() { records.Close(); client.Close() })
		return storage.OnRecords(records)
	}})
}
