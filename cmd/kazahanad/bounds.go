package main

import (
	"fmt"
	"time"
)

type boundsCmd struct {
	layoutFlags
	From string `arg:"FROM" help:"Time: RFC 3339, or a date (2026-11-01, in UTC)."`
	To   string `arg:"TO" optional:"" help:"End of the interval, exclusive (default: the end of FROM's millisecond or day)."`
	JSON bool   `name:"json" help:"Print JSON."`
}

// Run prints the smallest and the largest ID, for WHERE id BETWEEN ... AND ...
func (c *boundsCmd) Run(s *system) error {
	layout, err := c.layout()
	if err != nil {
		return err
	}
	from, width, err := parseTime(c.From)
	if err != nil {
		return err
	}
	to := from.Add(width)
	if c.To != "" {
		if to, _, err = parseTime(c.To); err != nil {
			return err
		}
	}
	smallest, largest, err := c.timeline(layout).Bounds(from, to)
	if err != nil {
		return usageError{err}
	}
	if c.JSON {
		return printJSON(s.out, map[string]string{"smallest": fmt.Sprint(int64(smallest)), "largest": fmt.Sprint(int64(largest))})
	}
	_, err = fmt.Fprintf(s.out, "%d %d\n", int64(smallest), int64(largest))
	return err
}

// parseTime parses a time or a date, and returns its start and its length: a
// millisecond or a day.
func parseTime(text string) (time.Time, time.Duration, error) {
	if t, err := time.Parse(time.DateOnly, text); err == nil {
		return t, 24 * time.Hour, nil
	}
	if t, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return t, time.Millisecond, nil
	}
	return time.Time{}, 0, usageError{fmt.Errorf("%q is neither a date (2026-11-01) nor a time in RFC 3339 (2026-11-01T12:00:00Z)", text)}
}
