// Package sqlitetest opens the file of a store for several clients in one process, which owns
// it.
package sqlitetest

import (
	"context"
	"sync"

	"github.com/kazahana/kazahana/internal/conn/sqlitefile"
	"github.com/kazahana/kazahana/internal/record/sqlite"
)

// use is a file that is open as long as it has clients.
type use struct {
	*sqlitefile.File
	clients int
}

var (
	mu   sync.Mutex
	uses = map[string]*use{} // by path; guarded by mu
)

// Open returns one client more of the file, and what ends that, once. Only the first client's
// options count.
func Open(path string, opts sqlitefile.Options) (*sqlitefile.File, func() error, error) {
	mu.Lock()
	defer mu.Unlock()
	u := uses[path]
	if u == nil {
		file, err := sqlitefile.OpenStore(context.Background(), path, opts, sqlite.Tables)
		if err != nil {
			return nil, nil, err
		}
		u = &use{File: file}
		uses[path] = u
	}
	u.clients++
	return u.File, sync.OnceValue(func() error {
		mu.Lock()
		defer mu.Unlock()
		if u.clients--; u.clients > 0 {
			return nil
		}
		delete(uses, path)
		return u.Close()
	}), nil
}
