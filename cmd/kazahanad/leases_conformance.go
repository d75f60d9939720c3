package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/kazahana/kazahana/internal/conn/httpconn"
	"github.com/kazahana/kazahana/internal/leaseapi/conformance"
)

type leasesConformanceCmd struct {
	URL     string        `arg:"URL" help:"The lease server, as a provider URL: http://HOST:PORT, with token_file= and the like if it needs them."`
	Service string        `name:"service" placeholder:"NAME" help:"Service to take leases for (default the server's)."`
	Timeout time.Duration `name:"timeout" min:"1ms" default:"3s" help:"How long the server may take for one request."`
}

// Run checks a lease server, and fails if a daemon could not rely on it.
func (c *leasesConformanceCmd) Run(s *system) error {
	cfg, err := httpconn.ParseURL(c.URL)
	if err != nil {
		return usageError{err}
	}
	if len(cfg.Servers) > 1 {
		return usageError{errors.New("conformance: name one server: several are checked one by one")}
	}
	client, err := httpconn.New(cfg)
	if err != nil {
		return err
	}
	defer client.Close()
	counts := map[conformance.Outcome]int{}
	passed := conformance.Run(s.ctx, conformance.Config{Client: client, Service: c.Service, Timeout: c.Timeout}, func(r conformance.Result) {
		counts[r.Outcome]++
		line := fmt.Sprintf("%-18s  %s", r.Outcome, r.Name)
		if r.Note != "" {
			line += ": " + r.Note
		}
		fmt.Fprintln(s.out, line)
	})
	fmt.Fprintf(s.out, "%s: %d ok, %d missing, %d failed\n", cfg.Names(), counts[conformance.OK], counts[conformance.Missing], counts[conformance.Failed])
	if !passed {
		return errors.New("a daemon cannot rely on this server")
	}
	return nil
}
