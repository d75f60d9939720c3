package redistest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/kazahana/kazahana/internal/conn/redisconn"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// SentinelSet is what the sentinels of Sentinels call the primary and its replicas.
const SentinelSet = "the-set"

// Sentinels starts three sentinels that watch the primary, and waits until they
// know each other and its replicas. It returns their addresses. more are lines of
// their configuration, password is theirs. They give no server up before Impatient.
func Sentinels(tb testing.TB, primary *Server, replicas int, more, password string) (addrs []string) {
	tb.Helper()
	bin := Binary(tb, "redis-sentinel")
	for range 3 {
		addrs = append(addrs, startSentinel(tb, bin, primary, more, password))
	}
	redisconn.Silence()
	for _, addr := range addrs {
		c := redis.NewSentinelClient(&redis.Options{Addr: addr, Password: password, DisableIdentity: true})
		defer c.Close()
		await.Success(tb, "the sentinels know each other", func() error {
			set, err := c.Master(context.Background(), SentinelSet).Result()
			if err == nil && (set["num-other-sentinels"] != "2" || set["num-slaves"] != fmt.Sprint(replicas)) {
				err = fmt.Errorf("%v", set)
			}
			return err
		})
	}
	return addrs
}

// startSentinel starts one, and waits until it answers. A program that has taken its port
// meanwhile makes it end: then it gets another one.
func startSentinel(tb testing.TB, bin string, primary *Server, more, password string) (addr string) {
	tb.Helper()
	for {
		dir, port := ring.Dir(tb), ring.FreePort(tb)
		config := fmt.Sprintf("port %[1]d\nbind 127.0.0.1\ndir %[2]s\nlogfile %[3]s\nsentinel monitor %[4]s 127.0.0.1 %[5]d 2\n"+
			"sentinel down-after-milliseconds %[4]s 60000\nsentinel failover-timeout %[4]s 3000\n%[6]s\n",
			port, dir, filepath.Join(dir, "log"), SentinelSet, primary.Port, more)
		path := filepath.Join(dir, "sentinel.conf")
		must.Succeed(tb, os.WriteFile(path, []byte(config), 0o600))
		cmd := exec.Command(bin, path)
		cmd.SysProcAttr = ring.DieWithParent(syscall.SIGKILL, nil)
		must.Succeed(tb, cmd.Start())
		ended := make(chan struct{})
		go func() { _ = cmd.Wait(); close(ended) }()
		tb.Cleanup(func() {
			_ = cmd.Process.Kill()
			<-ended
		})
		addr := fmt.Sprintf("127.0.0.1:%d", port)
		c := redis.NewSentinelClient(&redis.Options{Addr: addr, Password: password, DisableIdentity: true})
		defer c.Close()
		answers, over := false, false
		await.Eventually(tb, "a sentinel answers, or ends", func() bool {
			info := redis.NewStringCmd(context.Background(), "info", "server")
			_ = c.Process(context.Background(), info)
			answers = strings.Contains(info.Val(), fmt.Sprintf("process_id:%d\r", cmd.Process.Pid))
			select {
			case <-ended:
				over = true
			default:
			}
			return answers || over
		})
		if answers && !over {
			return addr
		}
	}
}

// Impatient has the sentinels give up a server that is silent for half a second: soon
// after a test ends the primary, and not before, however busy the machine is.
func Impatient(tb testing.TB, sentinels []string) {
	tb.Helper()
	for _, addr := range sentinels {
		c := redis.NewSentinelClient(&redis.Options{Addr: addr, DisableIdentity: true})
		defer c.Close()
		must.Succeed(tb, c.Set(context.Background(), SentinelSet, "down-after-milliseconds", "500").Err())
	}
}
