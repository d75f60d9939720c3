package backend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kazahana/kazahana/internal/conn/etcdconn"
	"github.com/kazahana/kazahana/internal/conn/postgresconn"
	"github.com/kazahana/kazahana/internal/conn/redisconn"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/pool"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/bounds"
	recordetcd "github.com/kazahana/kazahana/internal/record/etcd"
	recordpostgres "github.com/kazahana/kazahana/internal/record/postgres"
	recordredis "github.com/kazahana/kazahana/internal/record/redis"
)

// server is where a URL keeps records for many hosts. Leases are in an area of their own there, and
// locks and sequences in another one. Each has connections of its own: a flood of locks does not
// delay the calls of a keeper.
type server struct {
	name  string // of the provider on it
	place string // the URL without secrets, and without parameters that are the same everywhere
	// fence is how long nothing is granted where something may have been lost, if fenceSet.
	fence    time.Duration
	fenceSet bool
	// maxLockTTL is as in storeArea.
	maxLockTTL time.Duration

	// open reaches out to the server, and opens an area of it. The grants of this process last for
	// longestMS at most; 0: for as long as each says.
	open func(ctx context.Context, area record.Area, longestMS int64) (*opened, error)
}

// serverSchemes returns the schemes that parseServer knows.
func serverSchemes() []string {
	return slices.Concat(redisconn.Schemes(), []string{"etcd"}, postgresconn.Schemes())
}

// parseServer reads the URL of a server. The parameters that are named are the caller's: they are
// returned. It reaches out to nothing.
func parseServer(scheme, rawURL string, params []string, nowMS func() int64) (server, url.Values, error) {
	switch {
	case slices.Contains(redisconn.Schemes(), scheme):
		c, rest, err := redisconn.ParseURL(rawURL, params)
		if err != nil {
			return server{}, nil, err
		}
		return onRedis(c), rest, nil
	case slices.Contains(postgresconn.Schemes(), scheme):
		c, rest, err := postgresconn.ParseURL(rawURL, params)
		if err != nil {
			return server{}, nil, err
		}
		return onPostgres(c), rest, nil
	}
	c, rest, err := etcdconn.ParseURL(rawURL, params)
	if err != nil {
		return server{}, nil, err
	}
	return onEtcd(c, nowMS), rest, nil
}

// leases returns the provider of leases on the server.
func (s server) leases(services provider.Services) (*Leases, error) {
	info := provider.Info{
		Name: s.name, URL: services.Default.At(s.place), Scope: provider.ScopeShared,
		// A fence that ends before a lost grant does: another client may be granted the machine ID
		// of a living lease.
		Forgetful: s.fenceSet && s.fence.Milliseconds() < services.LongestMS(),
	}
	return lazyLeases(pool.Config{Services: services, Info: info}, func(ctx context.Context) (*opened, error) {
		o, err := s.open(ctx, pool.AreaOf(services), services.LongestMS())
		if err == nil && o.refuseOld != nil {
			return o.unless(o.refuseOld(ctx, services))
		}
		return o, err
	})
}

// store returns the store of locks and sequences on the server.
func (s server) store(limits bounds.Limits) (*Store, error) {
	return newStore(s.place, true, s.maxLockTTL, limits, func(ctx context.Context) (*opened, error) {
		return s.open(ctx, storeArea(s.maxLockTTL), 0)
	})
}

func onRedis(c redisconn.Config) server {
	return server{
		name: c.Scheme, place: c.Place(), fence: c.FailoverFence, fenceSet: c.FailoverFenceSet, maxLockTTL: c.MaxLockTTL,
		open: func(ctx context.Context, area record.Area, _ int64) (*opened, error) {
			client, err := redisconn.Open(c)
			if err != nil {
				return nil, err
			}
			records := recordredis.New(client, area)
			o := &opened{Store: records, closers: []io.Closer{records, client}}
			o.refuseOld = func(ctx context.Context, services provider.Services) error {
				return refuseOldRedis(ctx, client, services)
			}
			return o.unless(records.Check(ctx))
		},
	}
}

// refuseOldRedis fails where a pool has keys as kazahanad wrote them before leases were records. Who
// holds one of these leases is not known here.
func refuseOldRedis(ctx context.Context, client *redisconn.Client, services provider.Services) error {
	_, err := redisconn.RunAnywhere(ctx, client, redisconn.Repeatable, func(ctx context.Context, conn goredis.Cmdable) (struct{}, error) {
		for _, name := range services.Pools() {
			prefix := client.Config().Prefix + name + ":"
			switch err := conn.GetRange(ctx, prefix+"pool", 0, 0).Err(); {
			case goredis.HasErrorPrefix(err, "WRONGTYPE"):
				return struct{}{}, fmt.Errorf("%spool was written by an older kazahanad, whose leases of pool %q this one does not know: "+
					"end all of the older ones, wait until their leases have ended, and delete the keys %s*", prefix, name, prefix)
			case err != nil:
				return struct{}{}, err
			}
		}
		return struct{}{}, nil
	})
	return err
}

func onEtcd(c etcdconn.Config, nowMS func() int64) server {
	return server{
		name: "etcd", place: c.Place(),
		open: func(ctx context.Context, area record.Area, _ int64) (*opened, error) {
			client, err := etcdconn.Open(c)
			if err != nil {
				return nil, err
			}
			records := recordetcd.New(client, area, nowMS)
			o := &opened{Store: records, closers: []io.Closer{records, client}}
			o.refuseOld = func(ctx context.Context, services provider.Services) error {
				return refuseOldEtcd(ctx, client, services)
			}
			_, err = records.Read(ctx, record.Ask{})
			return o.unless(err)
		},
	}
}

// refuseOldEtcd fails where the pools are in the keys of earlier versions. Their daemons may run, and
// hold leases that this one does not see.
func refuseOldEtcd(ctx context.Context, client *etcdconn.Client, services provider.Services) error {
	for _, name := range services.Pools() {
		keys := client.Config().Prefix + name + "/"
		resp, err := client.Get(ctx, keys+"pool", clientv3.WithCountOnly())
		switch {
		case errors.Is(err, rpctypes.ErrPermissionDenied): // a user for these keys alone has none of the others
		case err != nil:
			return err
		case resp.Count > 0:
			return fmt.Errorf("%s: an earlier kazahana keeps leases in the keys below %s, and this one cannot see them: stop its daemons, "+
				"wait for term and quarantine, and delete these keys; or choose another pool or prefix", client.Config().Place(), keys)
		}
	}
	return nil
}

func onPostgres(c postgresconn.Config) server {
	return server{
		name: "postgres", place: c.Place(),
		fence: c.FailoverFence, fenceSet: c.FailoverFenceSet, maxLockTTL: c.MaxLockTTL,
		open: func(ctx context.Context, area record.Area, longestMS int64) (*opened, error) {
			client, err := postgresconn.Open(c)
			if err != nil {
				return nil, err
			}
			records := recordpostgres.New(client, area, longestMS)
			o := &opened{Store: records, closers: []io.Closer{records, client}}
			_, err = records.Look(ctx, nil)
			return o.unless(err)
		},
	}
}
