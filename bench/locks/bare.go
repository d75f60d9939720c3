package locks

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/kazahana/kazahana/internal/lock"
)

// deleteMine is how a lock of bare Redis is released.
var deleteMine = redis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)

var errNotMine = errors.New("the lock was not there, or not free")

// bareRedis is SET NX PX with a script that compares and deletes, and INCRBY. It
// cannot wait.
type bareRedis struct{ *redis.Client }

func (c bareRedis) acquire(ctx context.Context, key string, wait time.Duration) (func(context.Context) error, error) {
	if wait > 0 {
		return nil, errors.ErrUnsupported
	}
	name := lock.NewLeaseID()
	ok, err := c.SetNX(ctx, "bare:"+key, name, term).Result()
	if err == nil && !ok {
		err = errNotMine
	}
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		n, err := deleteMine.Run(ctx, c, []string{"bare:" + key}, name).Int()
		if err == nil && n != 1 {
			err = errNotMine
		}
		return err
	}, nil
}

func (c bareRedis) next(ctx context.Context, key string, count, block int) (int64, error) {
	if block > 0 {
		return 0, errors.ErrUnsupported
	}
	if count == 1 {
		return c.Incr(ctx, "bare:"+key).Result()
	}
	return c.IncrBy(ctx, "bare:"+key, int64(count)).Result()
}

// bareEtcd is a key that is put if it is absent, on an etcd lease that the client
// has for as long as it runs, and deleted if it is unchanged; and a number that is
// put if it is unchanged. It waits as etcd's own mutex does.
type bareEtcd struct{ session *concurrency.Session }

func (c bareEtcd) acquire(ctx context.Context, key string, wait time.Duration) (func(context.Context) error, error) {
	key = "bare/" + key
	if wait > 0 {
		m := concurrency.NewMutex(c.session, key)
		return m.Unlock, m.Lock(ctx)
	}
	absent := clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
	res, err := c.session.Client().Txn(ctx).If(absent).Then(clientv3.OpPut(key, owner, clientv3.WithLease(c.session.Lease()))).Commit()
	if err == nil && !res.Succeeded {
		err = errNotMine
	}
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		mine := clientv3.Compare(clientv3.ModRevision(key), "=", res.Header.Revision)
		res, err := c.session.Client().Txn(ctx).If(mine).Then(clientv3.OpDelete(key)).Commit()
		if err == nil && !res.Succeeded {
			err = errNotMine
		}
		return err
	}, nil
}

func (c bareEtcd) next(ctx context.Context, key string, count, block int) (int64, error) {
	if block > 0 {
		return 0, errors.ErrUnsupported
	}
	key = "bare/" + key
	client := c.session.Client()
	now, err := client.Get(ctx, key)
	for err == nil {
		last, revision := int64(0), int64(0)
		if len(now.Kvs) > 0 {
			revision = now.Kvs[0].ModRevision
			if last, err = strconv.ParseInt(string(now.Kvs[0].Value), 10, 64); err != nil {
				break
			}
		}
		last += int64(count)
		var res *clientv3.TxnResponse
		res, err = client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", revision)).
			Then(clientv3.OpPut(key, fmt.Sprint(last))).Else(clientv3.OpGet(key)).Commit()
		if err == nil && res.Succeeded {
			return last, nil
		}
		if err == nil {
			now = (*clientv3.GetResponse)(res.Responses[0].GetResponseRange())
		}
	}
	return 0, err
}
