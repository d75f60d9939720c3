package main

import (
	"bytes"
	"fmt"
	"os"
	"time"

	"github.com/kazahana/kazahana/internal/snowflake"
)

// layoutFlags name the layout of an ID, which the ID does not contain.
type layoutFlags struct {
	BitTS  int       `name:"bit-ts" default:"41" help:"Timestamp bits."`
	BitSeq int       `name:"bit-seq" default:"8" help:"Sequence bits; the machine ID has the rest of 63."`
	Epoch  time.Time `default:"2026-01-01T00:00:00Z" help:"Where time begins, RFC 3339."`
}

func (f *layoutFlags) layout() (snowflake.Layout, error) {
	l := snowflake.Layout{BitTS: f.BitTS, BitID: snowflake.ValueBits - f.BitTS - f.BitSeq, BitSeq: f.BitSeq}
	if err := l.Validate(); err != nil {
		return l, usageError{fmt.Errorf("--bit-ts %d and --bit-seq %d leave %d bits for the machine ID: %w", f.BitTS, f.BitSeq, l.BitID, err)}
	}
	return l, nil
}

func (f *layoutFlags) timeline() snowflake.Timeline {
	return snowflake.Timeline{EpochMS: f.Epoch.UnixMilli(), BitTS: f.BitTS}
}

// secretFlag names the secret for external IDs.
type secretFlag struct {
	ExternalSecretFile string `placeholder:"FILE" help:"Secret with which external IDs were made (default none)."`
}

func (f *secretFlag) codec() (snowflake.Codec, error) {
	codec, err := readSecret(f.ExternalSecretFile)
	if err != nil {
		return snowflake.Codec{}, fmt.Errorf("--external-secret-file: %w", err)
	}
	return codec, nil
}

// readSecret reads a secret as the daemon does; "" stands for none.
func readSecret(path string) (snowflake.Codec, error) {
	if path == "" {
		return snowflake.Codec{}, nil
	}
	secret, err := os.ReadFile(path)
	if err != nil {
		return snowflake.Codec{}, err
	}
	return snowflake.NewCodec(bytes.TrimSuffix(secret, []byte("\n")))
}
