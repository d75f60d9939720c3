// Package storm has many processes ask one daemon for IDs while it is killed and
// restarted under them. The folder clients does the same with the clients of all languages.
package storm

import (
	"testing"

	"github.com/kazahana/kazahana/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.Main(m, map[string]func(args []string) error{"storm": childStorm})
}
