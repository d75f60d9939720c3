package main

import (
	"embed"
	"fmt"
	"strings"
	"text/template"
	"time"

	"github.com/kazahana/kazahana/internal/snowflake"
)

// sqlDialects are the databases that writeSQL knows.
var sqlDialects = []string{"postgres", "mysql", "sqlite"}

//go:embed sqltext/*.sql
var sqlTexts embed.FS

var sqlTemplates = template.Must(template.ParseFS(sqlTexts, "sqltext/*.sql"))

// sqlConstants are what the texts need of a layout and an epoch.
type sqlConstants struct {
	About        string
	Epoch        string // in UTC, as SQL writes it
	EpochMS      int64
	LowBits      int
	BitSeq       int
	Span         int64 // milliseconds that the layout holds
	MaxLow       int64
	MaxMachineID int64
	MaxSequence  int64
	FallbackBit  int64
}

// writeSQL returns SQL that takes IDs apart and gives the IDs of a time: functions for
// PostgreSQL, MySQL and MariaDB, expressions for SQLite. The layout, which must be valid, and
// the epoch are constants in the text.
func writeSQL(dialect string, layout snowflake.Layout, epochMS int64) (string, error) {
	epoch := time.UnixMilli(epochMS).UTC()
	if year := epoch.Year(); year < 1000 || year > 9999 {
		return "", fmt.Errorf("the epoch %s is outside what SQL can write as a date", snowflake.FormatMS(epochMS))
	}
	tl := snowflake.Timeline{EpochMS: epochMS, BitTS: layout.BitTS}
	var out strings.Builder
	err := sqlTemplates.ExecuteTemplate(&out, dialect+".sql", sqlConstants{
		About: fmt.Sprintf("Layout %s (bit_ts/bit_id/bit_seq), epoch %s.", layout, snowflake.FormatMS(epochMS)),
		Epoch: epoch.Format("2006-01-02 15:04:05.000"), EpochMS: epochMS,
		LowBits: layout.LowBits(), BitSeq: layout.BitSeq, Span: 1 << layout.BitTS,
		MaxLow: tl.MaxLow(), MaxMachineID: layout.MachineIDs() - 1, MaxSequence: layout.Throughput() - 1,
		FallbackBit: tl.FallbackBit(),
	})
	return out.String(), err
}
