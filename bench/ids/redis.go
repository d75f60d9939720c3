//go:build linux

package ids

import (
	"context"
	"os/exec"
	"path/filepath"
	"regexp"

	"github.com/kazahana/kazahana/internal/load"
)

// incrBy is how many numbers one INCRBY hands out.
const incrBy = 100

// redisVersion is in what redis-server --version prints.
var redisVersion = regexp.MustCompile(`v=([0-9.]+)`)

func startRedis(ctx context.Context, b *bench) (*server, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, absence{"there is no redis-server (Debian package redis-server)"}
	}
	version := "of unknown version"
	if said, err := exec.CommandContext(ctx, path, "--version").Output(); err == nil {
		if found := redisVersion.FindSubmatch(said); found != nil {
			version = string(found[1])
		}
	}
	socket := filepath.Join(b.dir, "redis.sock")
	s := &server{name: redis, dialect: load.Redis,
		// Its answers do not grow with the count: one count says all.
		socket: func(w workload) string {
			if w.count > incrBy {
				return ""
			}
			return socket
		},
		note: "Redis: redis-server " + version + " without persistence; INCR for NextID, INCRBY 100 for NextIDs(100), which sends one integer " +
			"where the daemon sends a hundred; IDs/s means 100 for each answer",
	}
	return b.startReference(ctx, s, []string{socket}, path,
		"--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no", "--daemonize", "no", "--dir", b.dir)
}
