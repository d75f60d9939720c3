package doctor

import (
	"context"
	"testing"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/postgres"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/postgrestest"

	"github.com/kazahana/kazahana/internal/conn/postgresconn"
)

func lookAtPostgres(t *testing.T, cfg postgresconn.Config) []Finding {
	t.Helper()
	var clock Clock
	p := ProbePostgres(looking(t), cfg, &clock)
	if p.Err == nil && clock.Compared != p.Place {
		t.Errorf("the clock was not compared: %+v", clock)
	}
	return JudgePostgres(p)
}

func TestPostgresFaults(t *testing.T) {
	t.Parallel()
	server := postgrestest.New(t)
	cfg := server.Config()
	want(t, "a new server", lookAtPostgres(t, cfg), "postgres.new")
	want(t, "looking changes nothing", lookAtPostgres(t, cfg), "postgres.new")
	p, err := postgres.Open(postgres.Config{Config: cfg, Services: provider.Services{Default: provider.DefaultTerms()}})
	must.Succeed(t, err)
	defer p.Close()
	if _, err := p.Acquire(looking(t), provider.AcquireRequest{}); err != nil {
		t.Fatal(err)
	}
	want(t, "a good server", lookAtPostgres(t, cfg), "postgres.ok")
	if _, err := p.Fence(looking(t)); err != nil {
		t.Fatal(err)
	}
	want(t, "a fence", lookAtPostgres(t, cfg), "postgres.fenced")
	must.Succeed(t, p.Init(looking(t), ""))

	server.SQL("CREATE ROLE guest LOGIN", "GRANT USAGE ON SCHEMA "+cfg.Schema+" TO guest", "GRANT SELECT ON ALL TABLES IN SCHEMA "+cfg.Schema+" TO guest")
	guest := cfg
	guest.Username = "guest"
	want(t, "a user who may not write", lookAtPostgres(t, guest), "postgres.permission")
	guest.Schema = "other"
	want(t, "a user who may not make tables", lookAtPostgres(t, guest), "postgres.permission")
	guest.Username = "nobody"
	want(t, "no such user", lookAtPostgres(t, guest), "postgres.unreachable")

	standby := server.Standby("standby")
	want(t, "a standby that nobody waits for", lookAtPostgres(t, cfg), "postgres.unconfirmed")
	far := cfg
	far.Dir = standby.Dir
	want(t, "a standby", lookAtPostgres(t, far), "postgres.refused")
	server.Stop()
	want(t, "nobody", lookAtPostgres(t, cfg), "postgres.unreachable")

	loose := postgrestest.New(t, "-c", "fsync=off", "-c", "max_connections=12")
	var held []func()
	client, err := postgresconn.Open(loose.Config("max_connections=20"))
	must.Succeed(t, err)
	defer client.Close()
	for range 10 {
		_, release, err := client.Session(context.Background())
		must.Succeed(t, err)
		held = append(held, release)
	}
	want(t, "a server without fsync, and nearly full", lookAtPostgres(t, loose.Config()), "postgres.fsync_off postgres.connections")
	for _, release := range held {
		release()
	}
}
