package main

import (
	"errors"
	"fmt"

	"github.com/kazahana/kazahana/internal/daemon"
	"github.com/kazahana/kazahana/internal/generator"
)

type healthCmd struct {
	clientFlags
	Quiet bool `short:"q" help:"Print nothing."`
}

// Run succeeds when every service of the daemon can issue IDs, regular or
// fallback. It takes no ID itself: a probe must not use any up.
func (c *healthCmd) Run(s *system) error {
	err := c.check(s)
	if c.Quiet && err != nil {
		return errors.New("")
	}
	return err
}

func (c *healthCmd) check(s *system) error {
	var st daemon.Status
	if err := c.ask(s, c.Timeout, "Status", &st); err != nil {
		return err
	}
	for _, svc := range st.Services {
		if svc.Mode == string(generator.ModeUnavailable) {
			return fmt.Errorf("service %s cannot issue IDs: %s", svc.Service, svc.Cause)
		}
	}
	if !c.Quiet {
		fmt.Fprintf(s.out, "ok: %s\n", st.Mode)
		for _, hit := range st.Overload {
			fmt.Fprintf(s.out, "overloaded: %v\n", hit)
		}
	}
	return nil
}
