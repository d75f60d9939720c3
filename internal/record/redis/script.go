package redis

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kazahana/kazahana/internal/conn/redisconn"
)

//go:embed lua/*.lua
var sources embed.FS

var restateScript = redis.NewScript(source("restate"))

// commands are the commands of the scripts and of this package, which an ACL must allow.
const commands = "info time get set del getrange zadd zrem zrange publish subscribe unsubscribe ping eval evalsha wait"

func source(name string) string {
	text, err := sources.ReadFile("lua/" + name + ".lua")
	if err != nil {
		panic("redis: a script is missing from the binary: " + err.Error())
	}
	return string(text)
}

// fill replaces the names in double braces in the text of a script.
func (s *Store) fill(name, runID, replID string) *redis.Script {
	quote := func(key string) string {
		return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(key) + "'"
	}
	clock := "local time = redis.call('TIME')\nlocal now = time[1] * 1000 + math.floor(time[2] / 1000)"
	if s.cfg.NowMS != nil {
		clock = "local now = tonumber(ARGV[#ARGV])\nARGV[#ARGV] = nil"
	}
	steady := "if last > now then now = last end"
	if s.area.FollowsClock {
		steady = ""
	}
	return redis.NewScript(strings.NewReplacer(
		"{{run_id}}", runID, "{{repl_id}}", replID, "{{clock}}", clock, "{{steady}}", steady,
		"{{looks}}", strconv.Itoa(looks), "{{frees}}", strconv.Itoa(frees), "{{min_replicas}}", strconv.Itoa(s.cfg.MinReplicas),
		"{{state}}", quote(s.stateKey()), "{{due}}", quote(s.dueKey()),
	).Replace(source(name)))
}

// life is a server in a state of the store.
type life struct {
	state  // its lastMS and floor are old
	name   string
	script *redis.Script
	// seenFloor is the floor as last seen in this life: a hint. It is the life's own, since under
	// the floor of the life before are tokens that were forgotten.
	seenFloor atomic.Int64
}

// changed: the server or the state is not the known one.
var errChanged = errors.New("the store has another life")

// hello asks the server for its identity, and settles the store's state with it. It returns the
// life that was known before where that still holds.
func (s *Store) hello(ctx context.Context, conn redis.Cmdable) (*life, error) {
	return s.settle(ctx, conn, func(*state, int64) {}, func() error { return nil })
}

// edit changes the facts of the store, at the server's time. The change is made until it makes no
// difference.
func (s *Store) edit(ctx context.Context, change func(st *state, nowMS int64)) (*life, error) {
	return redisconn.Run(ctx, s.client, redisconn.Repeatable, func(ctx context.Context, conn *redis.Conn) (*life, error) {
		return s.settle(ctx, conn, change, func() error { return s.client.Confirm(ctx, conn) })
	})
}

// settle brings the store's state and the known copy of it up to date, and calls written
// after it has changed the state.
func (s *Store) settle(ctx context.Context, conn redis.Cmdable, change func(*state, int64), written func() error) (*life, error) {
	for range maxLooks {
		sent := s.elapsed()
		found, srv, text, err := s.ask(ctx, conn)
		if err != nil {
			return nil, err
		}
		after, changes := settle(found, srv, s.limits)
		if settled := after.facts; !changes {
			change(&after, srv.nowMS)
			changes = after.facts != settled
		}
		if !changes {
			nowMS := srv.nowMS
			if !s.area.FollowsClock {
				nowMS = max(nowMS, after.lastMS) // a rule may run before a commit has answered
			}
			s.synchronize(nowMS, sent)
			s.looked.Store(int64(s.elapsed()))
			if known := s.life.Load(); known != nil && known.stamp == after.stamp && known.facts == after.facts {
				return known, nil
			}
			l := &life{state: after, name: after.life(), script: s.fill("commit", after.RunID, after.ReplID)}
			l.seenFloor.Store(after.floor)
			s.life.Store(l)
			return l, nil
		}
		done, err := restateScript.Run(ctx, conn, []string{s.stateKey()}, srv.runID, srv.replID, text, after.text()).Bool()
		if err == nil && done {
			err = written()
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, errors.New("others change the store's state all the time")
}

// ask returns the words of the server and of the store's record; found is nil where there is
// none.
func (s *Store) ask(ctx context.Context, conn redis.Cmdable) (found *state, srv server, text string, err error) {
	args := []any{commands}
	if s.cfg.NowMS != nil {
		args = append(args, s.cfg.NowMS())
	}
	got, err := s.fill("hello", "", "").Run(ctx, conn, []string{s.stateKey()}, args...).Slice()
	if err != nil {
		return nil, server{}, "", err
	}
	if len(got) != 4 {
		return nil, server{}, "", errors.New("the answer of a script cannot be read")
	}
	refused, _ := got[0].(string)
	info, _ := got[1].(string)
	nowMS, _ := got[2].(int64)
	text, _ = got[3].(string)
	if refused != "" {
		return nil, server{}, "", fmt.Errorf("%w: the user's ACL does not allow %s on the keys %s*; the page on this provider has the rule to set",
			errUnfit, strings.ToUpper(refused), s.cfg.Prefix)
	}
	if srv, err = parseInfo(info, nowMS); err != nil || text == "" {
		return nil, srv, "", err
	}
	st, err := parseState(s.stateKey(), text)
	return &st, srv, text, err
}

// headWords is how many words of the command come before the keys of a script.
const headWords = 3

// eval runs the script of a life: by its hash, and in full where this same server does
// not know it. The error is errChanged where it is another one.
func (s *Store) eval(ctx context.Context, conn redis.Cmdable, l *life, words []any) (any, error) {
	if s.elapsed()-time.Duration(s.looked.Load()) > lookEvery {
		if now, err := s.hello(ctx, conn); err != nil {
			return nil, err
		} else if now != l {
			return nil, errChanged
		}
	}
	if s.cfg.NowMS != nil {
		words = append(words[:len(words):len(words)], s.cfg.NowMS())
	}
	cmd := redis.NewCmd(ctx, words...)
	process := s.client.Process
	if own, ok := conn.(*redis.Conn); ok {
		process = own.Process
	}
	err := process(ctx, cmd)
	if err == nil {
		return cmd.Val(), nil
	}
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		now, err := s.hello(ctx, conn)
		if err != nil {
			return nil, err
		}
		if now != l {
			return nil, errChanged
		}
		keys := make([]string, words[headWords-1].(int))
		for i := range keys {
			keys[i] = words[headWords+i].(string)
		}
		return l.script.Eval(ctx, conn, keys, words[headWords+len(keys):]...).Result()
	}
	return nil, err
}
