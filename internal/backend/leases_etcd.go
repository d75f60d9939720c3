package backend

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kazahana/kazahana/internal/conn/etcdconn"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/pool"
	recordetcd "github.com/kazahana/kazahana/internal/record/etcd"
)

// openEtcdLeases returns the provider that an etcd: URL names. It has a connection of its own, so
// that no flood of locks delays the calls of a keeper.
func openEtcdLeases(rawURL string, opts ProviderOptions) (provider.Provider, error) {
	conn, q, err := etcdconn.ParseURL(rawURL, provider.TermsParams())
	if err != nil {
		return nil, err
	}
	terms, err := provider.ParseTerms(q)
	if err != nil {
		return nil, err
	}
	services := opts.services(terms)
	if err := services.Validate(); err != nil {
		return nil, err
	}
	if opts.NowMS == nil {
		opts.NowMS = func() int64 { return time.Now().UnixMilli() }
	}
	info := pool.InfoOf(provider.Info{Name: "etcd", URL: etcdLeasesURL(conn, services.Default), Scope: provider.ScopeShared}, false)
	return newLazy(info, func(ctx context.Context) (provider.Provider, error) {
		client, err := etcdconn.Open(conn)
		if err != nil {
			return nil, err
		}
		records := recordetcd.New(client, pool.AreaOf(services), opts.NowMS)
		closeAll := func() error { return errors.Join(records.Close(), client.Close()) }
		p, err := pool.New(pool.Config{Records: records, Services: services, Info: info, NowMS: opts.NowMS, Close: closeAll})
		if err == nil {
			err = refuseOldLeases(ctx, client, services)
		}
		if err == nil {
			err = p.Look(ctx)
		}
		if err != nil {
			return nil, errors.Join(err, closeAll())
		}
		return p, nil
	}), nil
}

// etcdLeasesURL is the URL without secrets, and without parameters that are the same everywhere.
func etcdLeasesURL(conn etcdconn.Config, terms provider.Terms) string {
	q := url.Values{}
	if conn.Prefix != etcdconn.DefaultPrefix {
		q.Set("prefix", conn.Prefix)
	}
	if terms.Pool != provider.DefaultPool {
		q.Set("pool", terms.Pool)
	}
	if !terms.IDs.IsAll() {
		q.Set("ids", terms.IDs.String())
	}
	if len(q) == 0 {
		return conn.Place()
	}
	return conn.Place() + "?" + strings.ReplaceAll(q.Encode(), "%2F", "/")
}

// refuseOldLeases returns an error where the pools are in the keys of earlier versions. Their
// daemons may run, and hold leases that this one does not see.
func refuseOldLeases(ctx context.Context, client *etcdconn.Client, services provider.Services) error {
	for _, t := range services.All() {
		keys := client.Config().Prefix + t.Pool + "/"
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
