// Package chaos breaks what daemons rely on while they work: providers are killed,
// emptied and frozen, lease servers are killed, directories are put back, disks freeze.
// Checkers judge what the clients received. docs/chaos.md explains the options.
package chaos

import (
	"testing"

	"github.com/kazahana/kazahana/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.Main(m, nil)
}
