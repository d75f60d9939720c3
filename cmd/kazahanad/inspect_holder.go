package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// holderFlags ask a provider for the maker of an ID.
type holderFlags struct {
	Config   string        `name:"config" placeholder:"FILE" help:"With --provider: the daemon's YAML file, for the pool and the terms of its services; none reads no file (default $KAZAHANA_CONFIG, else /etc/kazahana/kazahanad.yaml, if present)."`
	Provider string        `name:"provider" placeholder:"URL" help:"Ask this provider who held the machine ID at the ID's time."`
	Service  string        `name:"service" default:"default" placeholder:"NAME" help:"The service that made the ID: its pool with --provider, its key with --external-secret-file."`
	Timeout  time.Duration `name:"timeout" min:"1ms" default:"3s" help:"With --provider: time limit of one request to it."`
}

// holding is the provider's answer about an ID.
type holding struct {
	Holders []leaseLine `json:"holders"`
	Note    string      `json:"holder_note"`
}

// openHistory opens the provider of --provider, if it is set.
func (f *holderFlags) openHistory(s *system) (*store, error) {
	if f.Provider == "" {
		return nil, nil
	}
	st := &store{url: f.Provider, service: f.Service, timeout: f.Timeout}
	if config.TakesTerms(f.Provider) {
		// Without a state directory nothing depends on the user.
		flags := serveFlags{Config: f.Config, Provider: f.Provider, StateDir: "none"}
		settings, err := loadOnly(s, flags.args(), []string{"services", "service"})
		if err != nil {
			return nil, err
		}
		if st.options, err = flags.options(f.Service, settings); err != nil {
			return nil, usageError{err}
		}
	}
	if err := st.open(s.ctx); err != nil {
		return nil, err
	}
	if !st.Info().Coordinated {
		st.Close()
		return nil, fmt.Errorf("provider %s: it keeps no history, so it cannot tell who made an ID", config.Redact(f.Provider))
	}
	return st, nil
}

// locate asks for the holder of the ID's machine ID at its time, and refuses a pool with
// another epoch or timestamp bits than the command's.
func (st *store) locate(s *system, in snowflake.Inspection) ([]provider.Record, error) {
	low := in.MachineID<<in.BitSeq | in.Sequence
	var found []provider.Record
	err := st.within(s, func(ctx context.Context) (err error) {
		found, err = st.Locate(ctx, st.service, low, in.TimestampMS)
		return err
	})
	if err != nil {
		return nil, err
	}
	asked := snowflake.Timeline{EpochMS: in.EpochMS, BitTS: in.Layout().BitTS}
	for _, r := range found {
		if tl := r.Lease.Timeline(); tl != asked {
			return nil, timelineHint(tl)
		}
	}
	if terms, ok := st.terms(); ok && len(found) == 0 && terms.Timeline != asked {
		return nil, timelineHint(terms.Timeline)
	}
	return found, nil
}

func timelineHint(tl snowflake.Timeline) error {
	return usageError{fmt.Errorf("the provider's pool has another epoch or other timestamp bits: repeat with --epoch %s --bit-ts %d",
		snowflake.FormatMS(tl.EpochMS), tl.BitTS)}
}

// holdersOf returns the maker of the ID, or the possible makers.
func (st *store) holdersOf(s *system, in snowflake.Inspection) (*holding, error) {
	nowMS := s.now().UnixMilli()
	found, note, err := provider.Makers(in, nowMS, func() ([]provider.Record, error) { return st.locate(s, in) })
	h := &holding{Holders: []leaseLine{}, Note: note}
	for _, r := range found {
		h.Holders = append(h.Holders, lineOf(r, nowMS))
	}
	return h, err
}

func (h *holding) show(w io.Writer) {
	for _, o := range h.Holders {
		fmt.Fprintf(w, "holder\thost %s, pid %s, service %s\n", printable(o.Host), printable(o.PID), printable(o.Service))
		released := "not handed back"
		if o.Released {
			released = "handed back, free from " + snowflake.FormatMS(o.FreeAtMS)
		}
		fmt.Fprintf(w, "lease\tmachine ID %d (%d/%d bits), %s to %s, %s\n", o.MachineID, o.BitID, o.BitSeq,
			snowflake.FormatMS(o.CreatedMS), snowflake.FormatMS(o.ExpiredMS), released)
	}
	if h.Note != "" {
		fmt.Fprintf(w, "holder\t%s\n", h.Note)
	}
}
