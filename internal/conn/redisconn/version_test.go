package redisconn_test

import (
	"testing"

	"github.com/kazahana/kazahana/internal/conn/redisconn"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

// A server before Redis 7 is refused by each script, and a later one is not.
// Seed 001-15.
func TestOldServersAreRefused(t *testing.T) {
	server := redistest.New(t)
	for version, want := range map[string]string{"6.2.14": "[version 6.2.14]", "7.0.0": "[norunid]"} {
		info := "local redis = {pcall = function() return '# Server\\r\\nredis_version:" + version +
			"\\r\\nrole:master\\r\\nmaxmemory_policy:noeviction\\r\\n' end}\n"
		answer := server.Do(t, "EVAL", info+redisconn.ServerSource+"\nlocal _, no = server() return no", 0)
		if answer != want {
			t.Errorf("Redis %s: %s, want %s", version, answer, want)
		}
	}
}
