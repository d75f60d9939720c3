package sqlitefile

import (
	"context"
	"path/filepath"
	"slices"
)

// StoreName is the file of a store beside a file of leases.
const StoreName = "store.db"

// StoreBeside is the path of the store that goes with the file of leases.
func StoreBeside(leases string) string { return filepath.Join(filepath.Dir(leases), StoreName) }

// OpenStore opens a file that several systems share, each with tables of its
// own; tables are the statements that make them, as in Kind.Additions. It has an
// application ID of its own: it and a file of leases are never taken for each
// other.
func OpenStore(ctx context.Context, path string, opts Options, tables ...[]string) (*File, error) {
	return Open(ctx, path, &Kind{
		Name: "store of locks and sequences", ApplicationID: 0x6b7a6873, // "kzhs"
		Additions:  slices.Concat(tables...),
		Unreleased: []string{"sequence", "locks", "activation"},
		Probe:      "SELECT count(*) FROM (SELECT 1 FROM sqlite_schema LIMIT 1)",
		Moved:      "put it back and restart",
		Damaged:    "restore it, or move it away if everything that it counted and locked may begin anew",
	}, opts)
}
