package postgres_test

import (
	"os"
	"testing"
	"time"

	postgresconn "github.com/kazahana/kazahana/internal/conn/postgres"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/postgres"
	"github.com/kazahana/kazahana/internal/record/recordtest"
	"github.com/kazahana/kazahana/internal/testkit/postgrestest"
)

func TestMain(m *testing.M) { os.Exit(postgrestest.Run(m)) }

// owned closes the client with the store.
type owned struct {
	*postgres.Store
	client *postgresconn.Client
}

func (o owned) Close() error {
	if err := o.Store.Close(); err != nil {
		return err
	}
	return o.client.Close()
}

const (
	began   = 1_800_000_000_000
	longest = 24 * 3600 * 1000
)

func open(cfg postgresconn.Config) (owned, error) {
	client, err := postgresconn.Open(cfg)
	if err != nil {
		return owned{}, err
	}
	return owned{postgres.New(client, longest), client}, nil
}

func TestConformance(t *testing.T) {
	recordtest.Run(t, func(t *testing.T) recordtest.Target {
		s := postgrestest.Shared(t)
		cfg := s.Config()
		set := s.Clock(&cfg)
		now := int64(began)
		set(now)
		return recordtest.Target{
			Open:    func() (record.Store, error) { return open(cfg) },
			Advance: func(d time.Duration) { now += d.Milliseconds(); set(now) },
		}
	})
}
