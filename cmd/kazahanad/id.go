package main

import (
	"bufio"
	"fmt"
	"strconv"
	"time"

	"github.com/kazahana/kazahana/internal/daemon"
)

// answerGrace is how much longer than --timeout this command waits for the answer:
// the daemon's own TIMEOUT says what it waited for.
const answerGrace = 2 * time.Second

type idCmd struct {
	clientFlags
	N           int    `short:"n" default:"1" placeholder:"N" help:"How many IDs, 1 to 65536."`
	Format      string `enum:"int,string,external,hex,json" default:"int" help:"int, string (the same, quoted), external, hex, or json (one array)."`
	Service     string `placeholder:"NAME" help:"Service to ask (default: the daemon's)."`
	RegularOnly bool   `help:"Fail instead of printing a fallback ID."`
}

// Run prints IDs, ascending.
func (c *idCmd) Run(s *system) error {
	if c.N < 1 || c.N > daemon.MaxBatch {
		return usageError{fmt.Errorf("-n %d: must be 1 to %d", c.N, daemon.MaxBatch)}
	}
	options := map[string]any{"timeout_ms": c.Timeout.Milliseconds()}
	if c.Service != "" {
		options["service"] = c.Service
	}
	if c.RegularOnly {
		options["regular_only"] = true
	}
	if c.Format == "external" {
		options["format"] = "external"
		var ids []string
		if err := c.ask(s, c.Timeout+answerGrace, "NextIDs", &ids, c.N, options); err != nil {
			return err
		}
		return c.print(s, ids)
	}
	var ids []uint64
	if err := c.ask(s, c.Timeout+answerGrace, "NextIDs", &ids, c.N, options); err != nil {
		return err
	}
	texts := make([]string, len(ids))
	for i, id := range ids {
		switch c.Format {
		case "hex":
			texts[i] = fmt.Sprintf("0x%016x", id)
		case "string":
			texts[i] = strconv.Quote(strconv.FormatUint(id, 10))
		default:
			texts[i] = strconv.FormatUint(id, 10)
		}
	}
	return c.print(s, texts)
}

// print writes one ID a line, or a JSON array of strings: many JSON readers round
// numbers above 2^53.
func (c *idCmd) print(s *system, ids []string) error {
	if c.Format == "json" {
		return printJSON(s.out, ids)
	}
	out := bufio.NewWriter(s.out)
	for _, id := range ids {
		if _, err := fmt.Fprintln(out, id); err != nil {
			return err
		}
	}
	return out.Flush()
}
