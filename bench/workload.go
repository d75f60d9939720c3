package main

import (
	"fmt"
	"strings"
)

// workload is a row of the table that is measured through a socket.
type workload struct {
	key         string // for -only
	title       string
	connections int
	depth       int // requests that are sent together, and awaited together
	count       int // IDs per request
}

var workloads = []workload{
	{key: "1", title: "NextID, 1 connection", connections: 1, depth: 1, count: 1},
	{key: "8", title: "NextID, 8 connections", connections: 8, depth: 1, count: 1},
	{key: "64", title: "NextID, 64 connections", connections: 64, depth: 1, count: 1},
	{key: "pipelined", title: "NextID, 1 connection, pipelined by 64", connections: 1, depth: 64, count: 1},
	{key: "batch100", title: "NextIDs(100), 1 connection", connections: 1, depth: 1, count: 100},
	{key: "batch1000", title: "NextIDs(1000), 1 connection", connections: 1, depth: 1, count: 1000},
}

// generatorKey selects the rows without a socket.
const generatorKey = "generator"

// timed reports whether the time of single requests is of interest.
func (w workload) timed() bool { return w.depth == 1 && w.count == 1 }

func (w workload) unit() string {
	if w.count > 1 {
		return "IDs/s"
	}
	return "requests/s"
}

// rowKeys are what -only takes.
func rowKeys() []string {
	keys := []string{generatorKey}
	for _, w := range workloads {
		keys = append(keys, w.key)
	}
	return keys
}

// selectRows understands -only: keys separated by commas, "" for everything.
func selectRows(only string) (chosen []workload, generator bool, err error) {
	if only == "" {
		return workloads, true, nil
	}
	wanted := map[string]bool{}
	for key := range strings.SplitSeq(only, ",") {
		wanted[strings.TrimSpace(key)] = true
	}
	for _, w := range workloads {
		if wanted[w.key] {
			chosen = append(chosen, w)
		}
		delete(wanted, w.key)
	}
	generator = wanted[generatorKey]
	delete(wanted, generatorKey)
	for key := range wanted {
		return nil, false, fmt.Errorf("-only: there is no row %q; there are %s", key, strings.Join(rowKeys(), ", "))
	}
	return chosen, generator, nil
}
