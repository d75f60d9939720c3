package sqlitefile

import (
	"context"
	"path/filepath"
)

// StoreName is the name of the store's file beside a file of leases.
const StoreName = "store.db"

// StoreBeside is the path of the store that goes with the file of leases.
func StoreBeside(leases string) string { return filepath.Join(filepath.Dir(leases), StoreName) }

// OpenStore opens the file of a store, with the tables that the statements make. One process
// alone can have it open: the error of another is an OwnedError. A file of leases has
// another application ID: neither is ever taken for the other.
func OpenStore(ctx context.Context, path string, opts Options, tables []string) (*File, error) {
	return Open(ctx, path, &Kind{
		Name: "store of locks and sequences", Area: "store", ApplicationID: 0x6b7a6873, // "kzhs"
		Version: 1,
		Owned:   true,
		Schema:  tables,
		Moved:   "put it back and restart",
		Damaged: "restore it, or move it away if everything that it counted and locked may begin anew",
	}, opts)
}
