package main

import (
	"fmt"
	"strconv"
	"time"
)

// answerGrace is how much longer than --timeout this command waits for the answer:
// the daemon's own TIMEOUT names the cause of the wait.
const answerGrace = 2 * time.Second

type idCmd struct {
	clientFlags
	N           int    `name:"n" short:"n" min:"1" max:"65536" default:"1" placeholder:"N" help:"How many IDs, 1 to 65536."`
	Format      string `name:"format" enum:"int,string,external,hex,json" default:"int" help:"int, string (the same, quoted), external, hex, or json (one array)."`
	Service     string `name:"service" placeholder:"NAME" help:"Service to ask (default: the daemon's)."`
	RegularOnly bool   `name:"regular-only" help:"Fail instead of printing a fallback ID."`
}

// Run prints IDs, ascending.
func (c *idCmd) Run(s *system) error {
	options := map[string]any{"timeout_ms": c.Timeout.Milliseconds()}
	if c.Service != "" {
		options["service"] = c.Service
	}
	if c.RegularOnly {
		options["regular_only"] = true
	}
	var ids []uint64
	var texts []string
	var answer any = &ids
	if c.Format == "external" {
		options["format"], answer = c.Format, &texts
	}
	if err := c.ask(s, c.Timeout+answerGrace, "NextIDs", answer, c.N, options); err != nil {
		return err
	}
	for _, id := range ids {
		text := strconv.FormatUint(id, 10)
		switch c.Format {
		case "hex":
			text = fmt.Sprintf("0x%016x", id)
		case "string":
			text = strconv.Quote(text)
		}
		texts = append(texts, text)
	}
	if c.Format == "json" { // strings: many JSON readers round numbers above 2^53
		return printJSON(s.out, texts)
	}
	return printLines(s.out, texts)
}
