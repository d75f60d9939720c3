// Package redis keeps activation records on a Redis server, for all hosts that
// use it. A record counts when min_replicas have confirmed it.
//
// Redis may forget the latest writes in a restart or a failover. The locks that
// placement takes are then fenced (see package lock/redis): nothing is activated
// for as long as any membership lasts that may have been forgotten. What is
// activated goes on; a record of it that was lost is not written again.
package redis

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/redis/go-redis/v9"

	redisconn "github.com/kazahana/kazahana/internal/conn/redis"
	"github.com/kazahana/kazahana/internal/placement/storage"
)

// swapSource replaces a cell.
//
//go:embed swap.lua
var swapSource string

var (
	helloScript = redisconn.NewScript(`
local _, refusal = server()
return acl(A.commands, KEYS[1]) or refusal or {'ok'}`)
	swapScript = redisconn.NewScript(swapSource)
	readScript = redisconn.NewScript(`
local _, refusal = server()
if refusal then return refusal end
return {'ok', redis.call('GET', KEYS[1]) or ''}`)
)

// commands is what the scripts and this package run: what an ACL must allow.
const commands = "info time get set eval evalsha wait"

type cells struct {
	client *redisconn.Client
	prefix string
}

// Open reaches out to the server and checks that it can be used. Whoever opened
// the client closes it.
func Open(ctx context.Context, client *redisconn.Client) (storage.Storage, error) {
	c := &cells{client, client.Config().Prefix + "@act:"}
	var args redisconn.Args
	args.Set("commands", commands)
	if _, err := c.run(ctx, helloScript, "", args, nil); err != nil {
		return nil, err
	}
	return storage.New(c), nil
}

// Close implements storage.Cells. The client stays open.
func (c *cells) Close() error { return nil }

// Read implements storage.Cells. A replica's answer may be old: the script
// refuses to run on one.
func (c *cells) Read(ctx context.Context, name string) (value []byte, err error) {
	_, err = c.run(ctx, readScript, name, nil, func(r *redisconn.Reply) {
		if text := r.Text(); text != "" {
			value = []byte(text)
		}
	})
	return value, err
}

// Swap implements storage.Cells.
func (c *cells) Swap(ctx context.Context, name string, read, next []byte) (bool, error) {
	var args redisconn.Args
	args.Set("read", read)
	args.Set("next", next)
	args.Set("min_replicas", c.client.Config().MinReplicas)
	word, err := c.run(ctx, swapScript, name, args, nil)
	return word == "ok", err
}

// run evaluates a script that answers "ok" and more, or "other".
func (c *cells) run(ctx context.Context, script *redis.Script, name string, args redisconn.Args, then func(*redisconn.Reply)) (string, error) {
	return redisconn.Run(ctx, c.client, redisconn.Repeatable, func(ctx context.Context, conn *redis.Conn) (string, error) {
		r, err := c.client.Eval(ctx, conn, script, c.prefix+name, args)
		if err != nil {
			return "", err
		}
		word := r.Text()
		switch {
		case word == "other":
			return word, nil
		case word != "ok":
			return "", c.client.Refusal(word, r)
		}
		if then != nil {
			then(r)
		}
		if err := r.Err(); err != nil || script != swapScript {
			return word, err
		}
		return word, c.confirm(ctx, conn)
	})
}

// confirm waits until replicas know of what was written.
func (c *cells) confirm(ctx context.Context, conn *redis.Conn) error {
	least := c.client.Config().MinReplicas
	if least == 0 {
		return nil
	}
	n, err := c.client.Confirmed(ctx, conn)
	if err == nil && n < int64(least) {
		err = fmt.Errorf("%w: %d of min_replicas=%d know of it", redisconn.ErrUnconfirmed, n, least)
	}
	return err
}
