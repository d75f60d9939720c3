package redisconn

import (
	"errors"
	"strings"
	"testing"
)

// refused is an error that the server answered.
type refused string

func (r refused) Error() string { return string(r) }
func (refused) RedisError()     {}

func TestErrorsSayWhatToDo(t *testing.T) {
	c := &Client{cfg: Config{Scheme: SchemeUnix, Addrs: []string{"/s"}, Prefix: "{p}:", MinReplicas: 2}}
	for want, err := range map[string]error{
		"reading its data from disk":                          refused("LOADING Redis is loading the dataset in memory"),
		"name its primary, or use redis+sentinel://":          refused("READONLY You can't write against a read only replica."),
		"cannot write its snapshot":                           refused("MISCONF Redis is configured to save RDB snapshots"),
		"no memory left":                                      refused("OOM command not allowed when used memory > 'maxmemory'."),
		"a Redis Cluster that is down":                        refused("CLUSTERDOWN The cluster is down"),
		"clusters are not supported":                          refused("MOVED 3999 127.0.0.1:6381"),
		"has lost its primary":                                refused("MASTERDOWN Link with MASTER is down"),
		"min-replicas-to-write":                               refused("NOREPLICAS Not enough good replicas to write."),
		"another script":                                      refused("BUSY Redis is busy running a script."),
		"password_file=":                                      refused("NOAUTH Authentication required."),
		"ACL does not allow":                                  refused("NOPERM User kazahana has no permissions to run the 'info' command"),
		"choose another prefix=":                              refused("WRONGTYPE Operation against a key holding the wrong kind of value"),
		"takes local connections only":                        refused("DENIED Redis is running in protected mode"),
		"1 are connected, and min_replicas=2 must confirm":    c.TooFewReplicas(1),
		"written by a newer kazahanad (format 2, this one kn": FormatError("k", "2"),
	} {
		if err := c.cfg.explain(err); !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), c.cfg.Place()) {
			t.Errorf("the error is %q, want one with %q", err, want)
		}
	}
	if _, err := Open(Config{}); err == nil || errors.Is(err, ErrClosed) {
		t.Errorf("an empty configuration: %v", err)
	}
}
