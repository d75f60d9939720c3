package redis

import (
	"errors"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

// A server before Redis 7, and one that cannot be relied on, are refused.
func TestServersThatAreRefused(t *testing.T) {
	const good = "# Server\r\nredis_version:7.0.0\r\nrun_id:one\r\n# Replication\r\nmaster_replid:1\r\nmaster_replid2:2\r\n# Memory\r\nmaxmemory_policy:noeviction\r\n"
	for name, c := range map[string]struct{ old, new, says string }{
		"good":             {"", "", ""},
		"later":            {"7.0.0", "12.1.0", ""},
		"before Redis 7":   {"7.0.0", "6.2.14", "its version is 6.2.14, and must be 7.0 or later"}, // seed 001-15
		"no version":       {"redis_version", "other_version", "its version is , and must be"},
		"keys are evicted": {"noeviction", "allkeys-lru", "maxmemory-policy is allkeys-lru"},
		"no run ID":        {"run_id", "other_id", "run_id"},
		"no history":       {"master_replid:", "other:", "run_id"},
	} {
		s, err := parseInfo(strings.Replace(good, c.old, c.new, 1), began)
		if (err == nil) != (c.says == "") || err != nil && (!errors.Is(err, errUnfit) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: the error is %v, want one with %q", name, err, c.says)
		}
		if want := (server{runID: "one", replID: "1", wasReplica: true, nowMS: began}); err == nil && s != want {
			t.Errorf("%s: it is %+v, want %+v", name, s, want)
		}
	}
	// Such a server knows neither a look at rights nor several sections of INFO.
	old := "local redis = {call = function(command, section) return command .. (section or '') end}\n"
	if got := redistest.Shared(t).Do(t, "EVAL", old+strings.Replace(source("hello"), "{{clock}}", "local now = 0", 1), 0, commands); got != "[ INFO 0 ]" {
		t.Errorf("a server before Redis 7 answers %q", got)
	}
}
