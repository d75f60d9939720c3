package sequence_test

import (
	"errors"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/conn/postgresconn"
	"github.com/kazahana/kazahana/internal/record/postgres"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/sequence/sequencetest"
	"github.com/kazahana/kazahana/internal/testkit/postgrestest"
)

// inPostgres closes the client with the store.
type inPostgres struct {
	*sequence.Records
	records *postgres.Store
	client  *postgresconn.Client
}

func (p inPostgres) Close() error { return errors.Join(p.records.Close(), p.client.Close()) }

func TestPostgresConformance(t *testing.T) {
	server := postgrestest.New(t)
	sequencetest.Run(t, func(t *testing.T) sequencetest.Target {
		cfg := server.Config()
		set := server.Clock(&cfg)
		now := time.Now().UnixMilli()
		set(now)
		return sequencetest.Target{
			Open: func() (sequence.Store, error) {
				client, err := postgresconn.Open(cfg)
				if err != nil {
					return nil, err
				}
				records := postgres.New(client, area, 0)
				return inPostgres{sequence.OnRecords(records), records, client}, nil
			},
			Advance: func(d time.Duration) { now += d.Milliseconds(); set(now) },
		}
	})
}
