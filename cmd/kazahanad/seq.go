package main

import (
	"context"
	"errors"

	"github.com/kazahana/kazahana/internal/caller"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/wire"
)

type seqCmd struct {
	clientFlags
	Key  string `arg:"KEY" help:"Name of the sequence."`
	N    int    `name:"n" short:"n" min:"1" max:"65536" default:"1" placeholder:"N" help:"How many values, 1 to 65536."`
	JSON bool   `name:"json" help:"Print one JSON array of integers."`
	declareFlags
}

// Run prints the next values of a sequence, ascending, or declares one.
func (c *seqCmd) Run(s *system) error {
	if c.Declare != nil {
		return c.declare(s, c.Key)
	}
	client := c.client(c.Timeout)
	defer client.Close()
	requestID := lock.NewLeaseID()
	var values []int64
	ask := func() error {
		return client.Call(s.ctx, "Sequence.NextBatch", &values, c.Key, c.N, map[string]any{"request_id": requestID})
	}
	err := ask()
	if errors.Is(err, wire.ErrConnectionLost) || caller.HasCode(err, wire.CodeShuttingDown) {
		ctx, cancel := context.WithTimeout(s.ctx, c.Timeout)
		defer cancel()
		err = caller.Repeat(ctx, ask) // with the same request ID, for the same values
	}
	if err != nil {
		return refusedUsage(err)
	}
	if c.JSON {
		return printJSON(s.out, values)
	}
	return printLines(s.out, values)
}
