package main

import (
	"fmt"
	"time"

	"github.com/kazahana/kazahana/internal/snowflake"
)

// layoutFlags name the layout of an ID, which the ID does not contain.
type layoutFlags struct {
	Layout string    `name:"layout" enum:"default,js" default:"default" help:"Layout by name: default, or js for IDs below 2^53."`
	BitTS  *int      `name:"bit-ts" placeholder:"BITS" help:"Timestamp bits (default 41, those of the layout)."`
	BitSeq *int      `name:"bit-seq" placeholder:"BITS" help:"Sequence bits (default 8, those of the layout); the machine ID has the rest of 63."`
	Epoch  time.Time `name:"epoch" default:"2026-01-01T00:00:00Z" help:"Where time begins, RFC 3339."`
}

func (f *layoutFlags) layout() (snowflake.Layout, error) {
	l, err := snowflake.NamedLayout(f.Layout)
	if err != nil {
		return l, usageError{err}
	}
	if f.BitTS != nil {
		l.BitTS = *f.BitTS
	}
	if f.BitSeq != nil {
		l.BitSeq = *f.BitSeq
	}
	l.BitID = snowflake.ValueBits - l.BitTS - l.BitSeq
	if err := l.Validate(); err != nil {
		return l, usageError{fmt.Errorf("--bit-ts %d and --bit-seq %d leave %d bits for the machine ID: %w", l.BitTS, l.BitSeq, l.BitID, err)}
	}
	return l, nil
}

// timeline returns the timeline of a valid layout.
func (f *layoutFlags) timeline(l snowflake.Layout) snowflake.Timeline {
	return snowflake.Timeline{EpochMS: f.Epoch.UnixMilli(), BitTS: l.BitTS}
}
