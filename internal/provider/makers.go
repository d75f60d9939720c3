package provider

import (
	"fmt"

	"github.com/kazahana/kazahana/internal/snowflake"
)

// KeptGrants is how many grants of a slot Provider.Locate remembers.
const KeptGrants = 8

// Makers finds who can have made an ID. locate finds the holders of the ID's slot at its time. The
// note says what is not certain.
func Makers(in snowflake.Inspection, nowMS int64, locate func() ([]Record, error)) (found []Record, note string, err error) {
	if in.Kind == snowflake.KindFallback {
		return nil, "no lease stands behind a fallback ID: its maker had none, and took bits of an earlier one or random ones", nil
	}
	found, err = locate()
	switch {
	case len(found) == 0 && in.TimestampMS > nowMS:
		note = "nobody: its time is still to come"
	case len(found) == 0:
		note = fmt.Sprintf("nobody known: the last %d grants of each machine ID are remembered", KeptGrants)
	case len(found) > 1:
		note = "several grants: nobody coordinates them"
	}
	return found, note, err
}
