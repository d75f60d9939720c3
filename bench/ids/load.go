//go:build linux

package ids

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/kazahana/kazahana/bench/process"
	"github.com/kazahana/kazahana/internal/load"
)

// loadArguments is the command line of the sub-mode load. server is the process
// whose CPU time is measured too.
func loadArguments(o load.Options, server int) []string {
	return []string{"load", "-socket", o.Socket, "-dialect", o.Dialect, "-count", fmt.Sprint(o.Count),
		"-connections", fmt.Sprint(o.Connections), "-depth", fmt.Sprint(o.Depth),
		"-warmup", o.Warmup.String(), "-duration", o.Duration.String(), "-server", fmt.Sprint(server)}
}

// loadResult is what the sub-mode load prints, as JSON.
type loadResult struct {
	load.Result
	CPU    time.Duration `json:"cpu_ns"` // of the load generator
	Server time.Duration `json:"server_cpu_ns"`
}

// loadMain is the sub-mode load.
func loadMain(args []string) error {
	var o load.Options
	flags := flag.NewFlagSet("load", flag.ContinueOnError)
	flags.StringVar(&o.Socket, "socket", "", "path of the server's socket")
	flags.StringVar(&o.Dialect, "dialect", load.RPC, "how the server is asked")
	flags.IntVar(&o.Count, "count", 1, "IDs per request")
	flags.IntVar(&o.Connections, "connections", 1, "connections")
	flags.IntVar(&o.Depth, "depth", 1, "requests sent together on a connection")
	flags.DurationVar(&o.Warmup, "warmup", 100*time.Millisecond, "time before counting begins")
	flags.DurationVar(&o.Duration, "duration", 2*time.Second, "time that is counted")
	server := flags.Int("server", 0, "process ID whose CPU time is measured too")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if o.Connections < 1 || o.Depth < 1 || o.Count < 1 {
		return errors.New("load: needs a connection, a depth and a count of 1 or more")
	}
	var before, after cpu
	o.Began = func() (err error) {
		before, err = readCPU(*server)
		return err
	}
	// The loop allocates nothing, and nothing else should run.
	debug.SetGCPercent(-1)
	runtime.LockOSThread()
	result, err := load.Put(context.Background(), o)
	if err != nil {
		return err
	}
	if after, err = readCPU(*server); err != nil {
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
