package main

import (
	"bufio"
	"context"
	"fmt"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/sequence"
)

type seqCmd struct {
	clientFlags
	Key  string `arg:"" help:"Name of the sequence."`
	N    int    `short:"n" default:"1" placeholder:"N" help:"How many values, 1 to 65536."`
	JSON bool   `name:"json" help:"Print one JSON array of integers."`
}

// Run prints the next values of a sequence, ascending.
func (c *seqCmd) Run(s *system) error {
	if c.N < 1 || c.N > sequence.MaxCount {
		return usageError{fmt.Errorf("-n %d: 1 to %d values can be had at a time", c.N, sequence.MaxCount)}
	}
	values, err := c.take(s)
	if err != nil {
		return refusedUsage(err)
	}
	if c.JSON {
		return printJSON(s.out, values)
	}
	out := bufio.NewWriter(s.out)
	for _, v := range values {
		if _, err := fmt.Fprintln(out, v); err != nil {
			return err
		}
	}
	return out.Flush()
}

// take asks once more when the answer is lost: the daemon gives the same values to
// the same request, so none is skipped.
func (c *seqCmd) take(s *system) (values []int64, err error) {
	path, err := c.path(s)
	if err != nil {
		return nil, err
	}
	options := map[string]any{"request_id": provider.NewSecret()}
	ask := func() error {
		ctx, cancel := context.WithTimeout(s.ctx, c.Timeout)
		defer cancel()
		return callAt(ctx, path, "Sequence.NextBatch", &values, c.Key, c.N, options)
	}
	if err = ask(); !unanswered(err) || unreachable(err) {
		return values, err
	}
	ctx, cancel := context.WithTimeout(s.ctx, c.Timeout)
	defer cancel()
	return values, repeat(ctx, unreachable, ask) // a daemon that is restarting is waited for
}
