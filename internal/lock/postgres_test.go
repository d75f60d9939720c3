package lock_test

import (
	"errors"
	"testing"

	"github.com/kazahana/kazahana/internal/conn/postgresconn"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/lock/locktest"
	"github.com/kazahana/kazahana/internal/record/postgres"
	"github.com/kazahana/kazahana/internal/testkit/postgrestest"
)

// inPostgres closes the client with the store.
type inPostgres struct {
	*lock.Records
	records *postgres.Store
	client  *postgresconn.Client
}

func (p inPostgres) Close() error { return errors.Join(p.records.Close(), p.client.Close()) }

func openPostgres(cfg postgresconn.Config) (inPostgres, error) {
	client, err := postgresconn.Open(cfg)
	if err != nil {
		return inPostgres{}, err
	}
	records := postgres.New(client, area, 0)
	return inPostgres{lock.OnRecords(records), records, client}, nil
}

func TestPostgres(t *testing.T) {
	server := postgrestest.New(t)
	locktest.Run(t, func(t *testing.T) locktest.Backend {
		cfg := server.Config()
		return locktest.Backend{
			Open:    func() (lock.Store, error) { return openPostgres(cfg) },
			Restart: func() error { server.Restart(); return nil },
			NoClock: true, // a read may see an older state than a commit with an earlier time
		}
	})
}
