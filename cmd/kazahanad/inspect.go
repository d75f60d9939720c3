package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/kazahana/kazahana/internal/snowflake"
)

type inspectCmd struct {
	layoutFlags
	secretFlag
	IDs  []string `arg:"" name:"id" help:"IDs: decimal, hexadecimal after 0x, or external."`
	JSON bool     `name:"json" help:"Print JSON."`
}

// Run explains each ID. The ID does not say how it is split: the flags do.
func (c *inspectCmd) Run(s *system) error {
	layout, err := c.layout()
	if err != nil {
		return err
	}
	codec, err := c.codec()
	if err != nil {
		return err
	}
	var all []snowflake.Inspection
	for _, text := range c.IDs {
		id, err := snowflake.ParseID(text, codec)
		if err != nil {
			return fmt.Errorf("%q: %w", text, err)
		}
		in, err := snowflake.Inspect(id, layout, c.Epoch.UnixMilli(), codec)
		if err != nil {
			return err
		}
		all = append(all, in)
	}
	if c.JSON {
		return printInspections(s, all)
	}
	for i, in := range all {
		if i > 0 {
			fmt.Fprintln(s.out)
		}
		if err := describe(s, in); err != nil {
			return err
		}
	}
	return nil
}

// printInspections writes one object for one ID and an array for several, with
// IDs as strings: above 2^53 not every JSON reader keeps a number.
func printInspections(s *system, all []snowflake.Inspection) error {
	type spelled struct {
		snowflake.Inspection
		ID string `json:"id"`
	}
	out := make([]spelled, len(all))
	for i, in := range all {
		out[i] = spelled{in, fmt.Sprint(int64(in.ID))}
	}
	if len(out) == 1 {
		return printJSON(s.out, out[0])
	}
	return printJSON(s.out, out)
}

func describe(s *system, in snowflake.Inspection) error {
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	kind := in.Kind + ": made under a valid lease"
	if in.Kind == snowflake.KindFallback {
		kind = in.Kind + ": made without a lease; machine ID and sequence are the last lease's, or random"
	}
	fmt.Fprintf(w, "id\t%d\n", int64(in.ID))
	fmt.Fprintf(w, "hex\t0x%016x\n", uint64(in.ID))
	fmt.Fprintf(w, "external\t%s\n", in.External)
	fmt.Fprintf(w, "time\t%s\n", in.Time)
	fmt.Fprintf(w, "machine ID\t%d\n", in.MachineID)
	fmt.Fprintf(w, "sequence\t%d\n", in.Sequence)
	fmt.Fprintf(w, "kind\t%s\n", kind)
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(s.out, "\n%s\n", in.Picture())
	return err
}
