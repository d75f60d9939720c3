//go:build linux

package ids

import (
	"errors"
	"flag"
	"fmt"
	"os"

	"github.com/kazahana/kazahana/bench/process"
	"github.com/kazahana/kazahana/internal/load"
)

// held is what the sub-mode hold prints when all connections are there.
const held = "held"

// openFilesBeside is how many files hold, or a server, has open beside its
// connections, with room to spare.
const openFilesBeside = 100

// holdMain is the sub-mode hold: it opens connections, makes one request on
// each, and keeps them until it is killed.
func holdMain(args []string) error {
	o := load.Options{Count: 1}
	flags := flag.NewFlagSet("hold", flag.ContinueOnError)
	flags.StringVar(&o.Socket, "socket", "", "path of the server's socket")
	flags.StringVar(&o.Dialect, "dialect", load.RPC, "how the server is asked")
	flags.IntVar(&o.Connections, "connections", 10_000, "connections")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if o.Connections < 1 {
		return errors.New("hold: needs a connection")
	}
	if err := process.AllowOpenFiles(o.Connections + openFilesBeside); err != nil {
		return err
	}
	for i := range o.Connections {
		if _, err := load.AskOnce(o); err != nil {
			return fmt.Errorf("connection %d of %d: %w", i+1, o.Connections, err)
		}
	}
	fmt.Fprintln(os.Stdout, held)
	select {}
}
