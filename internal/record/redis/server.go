package redis

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// leastVersion is the oldest server that can be used.
const leastVersion = 7

// errUnfit says that the server's version or settings are not usable.
var errUnfit = errors.New("this Redis server cannot be used")

// noReplID is what INFO says where there is no replication ID.
var noReplID = strings.Repeat("0", 40)

// parseInfo reads the answer of INFO, and refuses a server that cannot be relied on.
func parseInfo(info string, nowMS int64) (server, error) {
	field := func(name string) string {
		_, after, _ := strings.Cut(info, "\n"+name+":")
		value, _, _ := strings.Cut(after, "\r")
		return value
	}
	s := server{
		runID: field("run_id"), replID: field("master_replid"), replIn: field("total_net_repl_input_bytes"),
		wasReplica: field("master_replid2") != noReplID, nowMS: nowMS,
	}
	version := field("redis_version")
	first, _, _ := strings.Cut(version, ".")
	number, _ := strconv.Atoi(first) // 0 where it is none
	switch policy := field("maxmemory_policy"); {
	case number < leastVersion:
		return server{}, fmt.Errorf("%w: its version is %s, and must be %d.0 or later", errUnfit, version, leastVersion)
	case policy != "noeviction":
		return server{}, fmt.Errorf("%w: its maxmemory-policy is %s, which deletes keys when memory is short, also those that must not be forgotten; "+
			"set it to noeviction", errUnfit, policy)
	case s.runID == "" || s.replID == "":
		return server{}, fmt.Errorf("%w: INFO does not tell its run_id, without which a restart goes unnoticed", errUnfit)
	}
	return s, nil
}
