// Package sqltext has SQL that takes IDs apart and gives the IDs of a time: functions for
// PostgreSQL, MySQL and MariaDB, expressions for SQLite.
package sqltext

import (
	"embed"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/kazahana/kazahana/internal/snowflake"
)

//go:embed *.sql
var texts embed.FS

// Write returns the SQL for postgres, mysql or sqlite. The layout, which must be valid, and the
// epoch are constants in the text.
func Write(dialect string, layout snowflake.Layout, epochMS int64) (string, error) {
	epoch := time.UnixMilli(epochMS).UTC()
	if year := epoch.Year(); year < 1000 || year > 9999 {
		return "", fmt.Errorf("the epoch %s is outside what SQL can write as a date", snowflake.FormatMS(epochMS))
	}
	tl := snowflake.Timeline{EpochMS: epochMS, BitTS: layout.BitTS}
	text, err := texts.ReadFile(dialect + ".sql")
	if err != nil {
		return "", err
	}
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	return strings.NewReplacer(
		"{{About}}", fmt.Sprintf("Layout %s (bit_ts/bit_id/bit_seq), epoch %s.", layout, snowflake.FormatMS(epochMS)),
		"{{Epoch}}", epoch.Format("2006-01-02 15:04:05.000"), // in UTC, as SQL writes it
		"{{EpochMS}}", number(epochMS),
		"{{LowBits}}", number(int64(layout.LowBits())),
		"{{BitSeq}}", number(int64(layout.BitSeq)),
		"{{Span}}", number(1<<layout.BitTS), // milliseconds that the layout holds
		"{{MaxLow}}", number(tl.MaxLow()),
		"{{MaxMachineID}}", number(layout.MachineIDs()-1),
		"{{MaxSequence}}", number(layout.Throughput()-1),
		"{{FallbackBit}}", number(tl.FallbackBit()),
	).Replace(string(text)), nil
}
