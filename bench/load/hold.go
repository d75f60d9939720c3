//go:build linux

package load

import (
	"errors"
	"flag"
	"fmt"
	"os"

	"github.com/kazahana/kazahana/bench/process"
)

// Held is what the sub-mode hold prints when all connections are there.
const Held = "held"

// OpenFilesBeside is how many files hold, or a server, has open beside its
// connections, with room to spare.
const OpenFilesBeside = 100

// HoldMain is the sub-mode hold: it opens connections, makes one request on
// each, and keeps them until it is killed.
func HoldMain(args []string) error {
	o := Options{Count: 1}
	flags := flag.NewFlagSet("hold", flag.ContinueOnError)
	flags.StringVar(&o.Socket, "socket", "", "path of the server's socket")
	flags.StringVar(&o.Dialect, "dialect", RPC, "how the server is asked")
	flags.IntVar(&o.Connections, "connections", 10_000, "connections")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if o.Connections < 1 {
		return errors.New("hold: needs a connection")
	}
	if err := process.AllowOpenFiles(o.Connections + OpenFilesBeside); err != nil {
		return err
	}
	for i := range o.Connections {
		if _, err := AskOnce(o); err != nil {
			return fmt.Errorf("connection %d of %d: %w", i+1, o.Connections, err)
		}
	}
	fmt.Fprintln(os.Stdout, Held)
	select {}
}

// AskOnce connects, makes one request and awaits its answer. Unless there is an
// error, the connection stays open until hangUp is called.
func AskOnce(o Options) (hangUp func(), err error) {
	const oneAnswer = 256
	s, err := newSession(o, oneAnswer)
	if err != nil {
		return nil, err
	}
	if err := s.ask(1, 0); err != nil {
		s.socket.close()
		return nil, err
	}
	for {
		n, err := s.receive()
		if err != nil {
			s.socket.close()
			return nil, err
		}
		if n > 0 {
			return s.socket.close, nil
		}
	}
}
