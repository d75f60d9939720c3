//go:build linux

package ids

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/kazahana/kazahana/bench/process"
	"github.com/kazahana/kazahana/internal/load"
)

// held is what the part hold prints when all connections are there.
const held = "held"

// openFilesBeside is how many files hold, or a server, has open beside its
// connections, with room to spare.
const openFilesBeside = 100

// holdMain is the part hold: it opens connections, makes one request on each, and keeps
// them until it is told to end.
func holdMain(o load.Options) error {
	if err := process.AllowOpenFiles(o.Connections + openFilesBeside); err != nil {
		return err
	}
	for i := range o.Connections {
		if _, err := load.AskOnce(o); err != nil {
			return fmt.Errorf("connection %d of %d: %w", i+1, o.Connections, err)
		}
	}
	ended := make(chan os.Signal, 1) // without cgo, the runtime takes an empty select for a deadlock
	signal.Notify(ended, os.Interrupt, syscall.SIGTERM)
	fmt.Fprintln(os.Stdout, held)
	<-ended
	return nil
}
