package main

import (
	"fmt"

	"github.com/kazahana/kazahana/internal/issuer"
	"github.com/kazahana/kazahana/internal/snowflake"
)

type inspectCmd struct {
	layoutFlags
	holderFlags
	ExternalSecretFile string   `name:"external-secret-file" placeholder:"FILE" help:"Secret with which external IDs were made (default none)."`
	IDs                []string `arg:"ID" help:"IDs: decimal, hexadecimal with 0x, or external; put -- before an external one that begins with a dash."`
	JSON               bool     `name:"json" help:"Print JSON."`
}

// Run explains each ID. An ID does not contain its layout, so the flags name it.
func (c *inspectCmd) Run(s *system) error {
	layout, err := c.layout()
	if err != nil {
		return err
	}
	codec, err := issuer.LoadCodec(c.ExternalSecretFile, c.Service)
	if err != nil {
		return fmt.Errorf("--external-secret-file: %w", err)
	}
	st, err := c.openHistory(s)
	if err != nil {
		return err
	}
	if st != nil {
		defer st.Close()
	}
	var all []inspected
	for _, text := range c.IDs {
		id, err := snowflake.ParseID(text, codec)
		if err != nil {
			return fmt.Errorf("%q: %w", text, err)
		}
		in, err := snowflake.Inspect(id, layout, c.Epoch.UnixMilli(), codec)
		if err != nil {
			return err
		}
		one := inspected{Inspection: in, ID: fmt.Sprint(int64(in.ID))}
		if st != nil {
			if one.holding, err = st.holdersOf(s, in); err != nil {
				return err
			}
		}
		all = append(all, one)
	}
	if c.JSON && len(all) == 1 {
		return printJSON(s.out, all[0])
	}
	if c.JSON {
		return printJSON(s.out, all)
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

// inspected explains an ID. The ID is a string: many JSON readers round numbers
// above 2^53.
type inspected struct {
	snowflake.Inspection
	ID string `json:"id"`
	*holding
}

func describe(s *system, in inspected) error {
	w := table(s.out)
	kind := in.Kind + ": made under a valid lease"
	if in.Kind == snowflake.KindFallback {
		kind = in.Kind + ": made without a lease; machine ID and sequence are the last lease's, or random"
	}
	fmt.Fprintf(w, "id\t%d\n", int64(in.Inspection.ID))
	fmt.Fprintf(w, "hex\t0x%016x\n", uint64(in.Inspection.ID))
	fmt.Fprintf(w, "external\t%s\n", in.External)
	fmt.Fprintf(w, "time\t%s\n", in.Time)
	fmt.Fprintf(w, "machine ID\t%d\n", in.MachineID)
	fmt.Fprintf(w, "sequence\t%d\n", in.Sequence)
	fmt.Fprintf(w, "kind\t%s\n", kind)
	if in.holding != nil {
		in.show(w)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(s.out, "\n%s\n", in.Picture())
	return err
}
