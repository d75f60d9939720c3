package main

import (
	"fmt"

	"github.com/kazahana/kazahana/internal/sqltext"
)

type sqlCmd struct {
	layoutFlags
	Database string `arg:"DATABASE" enum:"postgres,mysql,sqlite" help:"postgres, mysql (MariaDB too) or sqlite."`
}

// Run prints SQL that does in a database what inspect and bounds do.
func (c *sqlCmd) Run(s *system) error {
	layout, err := c.layout()
	if err != nil {
		return err
	}
	text, err := sqltext.Write(c.Database, layout, c.Epoch.UnixMilli())
	if err != nil {
		return usageError{err}
	}
	_, err = fmt.Fprint(s.out, text)
	return err
}
