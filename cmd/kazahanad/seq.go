package main

import (
	"fmt"

	"github.com/kazahana/kazahana/internal/sequence"
)

type seqCmd struct {
	clientFlags
	Key  string `arg:"" help:"Name of the sequence."`
	N    int    `short:"n" default:"1" placeholder:"N" help:"How many values, 1 to 65536."`
	JSON bool   `name:"json" help:"Print one JSON array of integers."`
	declareFlags
}

// Run prints the next values of a sequence, ascending, or declares one.
func (c *seqCmd) Run(s *system) error {
	if c.Declare != nil {
		return c.declare(s, c.Key)
	}
	if c.N < 1 || c.N > sequence.MaxCount {
		return usageError{fmt.Errorf("-n %d: must be 1 to %d", c.N, sequence.MaxCount)}
	}
	client, err := c.client(c.Timeout) // after a lost answer it repeats the request, for the same values
	if err != nil {
		return err
	}
	defer client.Close()
	values, err := client.NextSequences(s.ctx, c.Key, c.N)
	if err != nil {
		return refusedUsage(ofClient(err))
	}
	if c.JSON {
		return printJSON(s.out, values)
	}
	return printLines(s.out, values)
}
