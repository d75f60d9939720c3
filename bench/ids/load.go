package ids

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/kazahana/kazahana/bench/process"
	"github.com/kazahana/kazahana/internal/load"
)

// load measures a server for the plan's duration.
func (b *bench) load(ctx context.Context, s *server, o load.Options) (result load.Result, err error) {
	o.Duration, o.Warmup = b.Duration, warmup
	if err := process.Ask(ctx, o.Warmup+o.Duration+patience, &result, arguments("load", o)...); err != nil {
		return result, fmt.Errorf("%s: %w", s.name, errors.Join(err, s.service.Failure()))
	}
	return result, nil
}

// loadMain is the part load. It prints the result as JSON.
func loadMain(o load.Options) error {
	// The loop allocates nothing, and nothing else should run.
	debug.SetGCPercent(-1)
	runtime.LockOSThread()
	result, err := load.Put(context.Background(), o)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}
