//go:build linux

package ids

import (
	"context"
	"encoding/json"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/kazahana/kazahana/bench/process"
	"github.com/kazahana/kazahana/internal/load"
)

// loadOptions are the options of the part load.
type loadOptions struct {
	load.Options
	Server int // process whose CPU time is measured too
}

// loadResult is what the part load prints, as JSON.
type loadResult struct {
	load.Result
	CPU    time.Duration `json:"cpu_ns"` // of the load generator
	Server time.Duration `json:"server_cpu_ns"`
}

// loadMain is the part load.
func loadMain(o loadOptions) error {
	var before, after cpu
	o.Began = func() (err error) {
		before, err = readCPU(o.Server)
		return err
	}
	// The loop allocates nothing, and nothing else should run.
	debug.SetGCPercent(-1)
	runtime.LockOSThread()
	result, err := load.Put(context.Background(), o.Options)
	if err != nil {
		return err
	}
	if after, err = readCPU(o.Server); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(loadResult{result, after.own - before.own, after.server - before.server})
}

// cpu is CPU time so far.
type cpu struct{ own, server time.Duration }

func readCPU(server int) (c cpu, err error) {
	if server == 0 {
		return c, nil
	}
	if c.server, err = process.CPUTime(server); err == nil {
		c.own, err = process.CPUTime(os.Getpid())
	}
	return c, err
}
