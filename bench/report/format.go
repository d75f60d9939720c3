package report

import "fmt"

// Show gives the median, and the least and greatest.
func (s Spread) Show(format func(float64) string) string {
	if s.Least == s.Greatest {
		return format(s.Median)
	}
	return fmt.Sprintf("%s (%s-%s)", format(s.Median), format(s.Least), format(s.Greatest))
}

// Formats of values.

func Ratio(v float64) string        { return fmt.Sprintf("%.2f", v) }
func Nanoseconds(v float64) string  { return fmt.Sprintf("%.2f", v) }
func Microseconds(v float64) string { return fmt.Sprintf("%.1f", v/1e3) }     // of nanoseconds
func Milliseconds(v float64) string { return fmt.Sprintf("%.1f", v/1e6) }     // of nanoseconds
func MiB(v float64) string          { return fmt.Sprintf("%.1f", v/(1<<20)) } // of bytes
func Whole(v float64) string        { return fmt.Sprintf("%.0f", v) }
func Kilo(v float64) string         { return fmt.Sprintf("%.1f", v/1e3) }
func Mega(v float64) string         { return fmt.Sprintf("%.2f", v/1e6) }
func Percent(v float64) string      { return fmt.Sprintf("%.1f%%", 100*v) } // of a share
