package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/kazahana/kazahana/internal/caller"
	"github.com/kazahana/kazahana/internal/daemon"
	"github.com/kazahana/kazahana/internal/wire"
)

// clientFlags are common to the subcommands that ask a running daemon.
type clientFlags struct {
	Socket  string        `name:"socket" type:"socket" placeholder:"PATH" help:"The daemon's Unix socket, PATH, unix:PATH or unix:///PATH (default $KAZAHANA_SOCKET, else the first of the usual places that exists)."`
	Timeout time.Duration `name:"timeout" min:"1ms" max:"48h" default:"10s" help:"How long to wait for the answer."`
}

// longestCall is the longest timeout, longer than any wait for a lock.
const longestCall = 48 * time.Hour

// client returns a client that limits its calls to limit. They fail at once if no daemon
// answers: a person or a probe waits for them.
func (f *clientFlags) client(limit time.Duration) *caller.Client { return caller.New(f.Socket, limit) }

// ask calls a method once.
func (f *clientFlags) ask(s *system, limit time.Duration, method string, result any, params ...any) error {
	client := f.client(limit)
	defer client.Close()
	return client.Call(s.ctx, method, result, params...)
}

// refusedUsage makes a usage error of a refusal that a repetition would not change.
func refusedUsage(err error) error {
	if caller.HasCode(err, wire.CodeInvalidParams, wire.CodeUnknownMethod, daemon.CodeNoStore) {
		return usageError{err}
	}
	return err
}

// printJSON writes the value as indented JSON.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// table aligns columns, which tabs separate. Flush writes them.
func table(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 0, 2, ' ', 0) }

// printLines writes one value a line.
func printLines[T any](w io.Writer, all []T) error {
	out := bufio.NewWriter(w)
	for _, one := range all {
		if _, err := fmt.Fprintln(out, one); err != nil {
			return err
		}
	}
	return out.Flush()
}
