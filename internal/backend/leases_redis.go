package backend

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/kazahana/kazahana/internal/conn/redisconn"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/pool"
	recordredis "github.com/kazahana/kazahana/internal/record/redis"
)

// redisLeases says which Redis to use and what to grant from it.
type redisLeases struct {
	redisconn.Config
	services provider.Services
}

// openRedisLeases returns the provider that the URL names.
func openRedisLeases(rawURL string, opts ProviderOptions) (provider.Provider, error) {
	conn, q, err := redisconn.ParseURL(rawURL, provider.TermsParams())
	if err != nil {
		return nil, err
	}
	terms, err := provider.ParseTerms(q)
	if err != nil {
		return nil, err
	}
	c := redisLeases{conn, opts.services(terms)}
	return onFirstUse(c, c.services.Validate(), openLeasesInRedis, nil)
}

// Info implements config.
func (c redisLeases) Info() provider.Info {
	text := c.Place()
	var more []string
	if c.Prefix != redisconn.DefaultPrefix {
		more = append(more, "prefix="+url.QueryEscape(c.Prefix))
	}
	if ids := c.services.Default.IDs; !ids.IsAll() {
		more = append(more, "ids="+ids.String())
	}
	if len(more) > 0 {
		separator := "?"
		if strings.Contains(text, "?") {
			separator = "&"
		}
		text += separator + strings.Join(more, "&")
	}
	return pool.InfoOf(provider.Info{Forgetful: c.forgetful(), Name: c.Scheme, URL: text, Scope: provider.ScopeShared, OwnClock: true}, false)
}

// forgetful reports whether the fence can end before a lost grant has: then another client may
// be granted the machine ID of a living lease.
func (c redisLeases) forgetful() bool {
	return c.FailoverFenceSet && c.FailoverFence.Milliseconds() < c.services.LongestMS()
}

// openLeasesInRedis reaches out to the server, and checks that leases can be granted from it. The connection
// and its turns are those of leases alone: a flood of locks does not delay the keeper.
func openLeasesInRedis(ctx context.Context, c redisLeases) (provider.Provider, error) {
	client, err := redisconn.Open(c.Config)
	if err != nil {
		return nil, err
	}
	records := recordredis.New(client, pool.AreaOf(c.services))
	p, err := pool.New(pool.Config{
		Records: records, Services: c.services, Info: c.Info(), NowMS: c.NowMS,
		Close: func() error { return errors.Join(records.Close(), client.Close()) },
	})
	if err != nil {
		return nil, errors.Join(err, records.Close(), client.Close())
	}
	err = records.Check(ctx)
	if err == nil {
		err = c.checkKeys(ctx, client)
	}
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// checkKeys fails where a pool has keys as kazahanad wrote them before leases were records. Who
// holds one of these leases is not known here.
func (c redisLeases) checkKeys(ctx context.Context, client *redisconn.Client) error {
	_, err := redisconn.RunAnywhere(ctx, client, redisconn.Repeatable, func(ctx context.Context, conn goredis.Cmdable) (struct{}, error) {
		var seen []string
		for _, t := range c.services.All() {
			if slices.Contains(seen, t.Pool) {
				continue
			}
			seen = append(seen, t.Pool)
			key := c.Prefix + t.Pool + ":pool"
			switch err := conn.GetRange(ctx, key, 0, 0).Err(); {
			case goredis.HasErrorPrefix(err, "WRONGTYPE"):
				return struct{}{}, fmt.Errorf("%s was written by an older kazahanad, whose leases of pool %q this one does not know: "+
					"end all of the older ones, wait until their leases have ended, and delete the keys %s%s:*", key, t.Pool, c.Prefix, t.Pool)
			case err != nil:
				return struct{}{}, err
			}
		}
		return struct{}{}, nil
	})
	return err
}
