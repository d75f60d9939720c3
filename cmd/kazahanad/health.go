package main

import (
	"errors"
	"fmt"

	"github.com/kazahana/kazahana/internal/daemon"
	"github.com/kazahana/kazahana/internal/generator"
)

type healthCmd struct {
	clientFlags
	Quiet bool `name:"quiet" short:"q" help:"Print nothing."`
}

// Run succeeds when every service of the daemon can issue IDs, regular or
// fallback. It takes no ID itself: a probe must not use any up.
func (c *healthCmd) Run(s *system) error {
	st, err := c.check(s)
	switch {
	case err != nil && c.Quiet:
		return exitStatus{code: exitCode(err)}
	case err != nil || c.Quiet:
		return err
	}
	fmt.Fprintf(s.out, "ok: %s\n", st.Mode)
	for _, hit := range st.Overload {
		fmt.Fprintf(s.out, "overloaded: %v\n", hit)
	}
	return nil
}

func (c *healthCmd) check(s *system) (st daemon.Status, err error) {
	if err := c.ask(s, c.Timeout, "Status", &st); err != nil {
		return st, err
	}
	for _, svc := range st.Services {
		if svc.Mode == string(generator.ModeUnavailable) {
			err = errors.Join(err, fmt.Errorf("service %s cannot issue IDs: %s", svc.Service, svc.Cause))
		}
	}
	return st, err
}
