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
	JSON  bool `name:"json" help:"Print JSON."`
}

// healthReport is what health --json prints.
type healthReport struct {
	OK       bool            `json:"ok"`
	Mode     string          `json:"mode"`  // of the service that is worst off; "" = no answer
	Error    string          `json:"error"` // why not
	Services []serviceHealth `json:"services"`
	Overload []string        `json:"overload"` // limits that are reached
}

type serviceHealth struct {
	Service string `json:"service"`
	Mode    string `json:"mode"`
	Cause   string `json:"cause"` // of the last failed acquire
}

// Run succeeds when every service of the daemon can issue IDs, regular or
// fallback. It takes no ID itself: a probe must not use any up.
func (c *healthCmd) Run(s *system) error {
	report, err := c.check(s)
	var usage usageError
	switch {
	case errors.As(err, &usage):
		return err
	case c.Quiet:
	case c.JSON:
		if printErr := printJSON(s.out, report); printErr != nil {
			return printErr
		}
	case err != nil:
		return err
	default:
		fmt.Fprintf(s.out, "ok: %s\n", report.Mode)
		for _, hit := range report.Overload {
			fmt.Fprintf(s.out, "overloaded: %v\n", hit)
		}
	}
	if err != nil {
		return errors.New("") // it was told, or must not be
	}
	return nil
}

func (c *healthCmd) check(s *system) (r healthReport, err error) {
	r.Services, r.Overload = []serviceHealth{}, []string{}
	var st daemon.Status
	if err = c.ask(s, c.Timeout, "Status", &st); err == nil {
		r.Mode = st.Mode
	}
	for _, svc := range st.Services {
		r.Services = append(r.Services, serviceHealth{svc.Service, svc.Mode, svc.Cause})
		if svc.Mode == string(generator.ModeUnavailable) && err == nil {
			err = fmt.Errorf("service %s cannot issue IDs: %s", svc.Service, svc.Cause)
		}
	}
	for _, hit := range st.Overload {
		r.Overload = append(r.Overload, hit.String())
	}
	if r.OK = err == nil; !r.OK {
		r.Error = err.Error()
	}
	return r, err
}
