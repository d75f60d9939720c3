package redis

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	redisconn "github.com/kazahana/kazahana/internal/conn/redis"
	"github.com/kazahana/kazahana/internal/placement"
	"github.com/kazahana/kazahana/internal/placement/storage"
	"github.com/kazahana/kazahana/internal/placement/storage/storagetest"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

func TestMain(m *testing.M) { os.Exit(redistest.Run(m)) }

func open(t testing.TB, cfg redisconn.Config) (storage.Storage, error) {
	client, err := redisconn.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return Open(context.Background(), client)
}

func mustOpen(t testing.TB, cfg redisconn.Config) storage.Storage {
	s, err := open(t, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

var (
	key  = placement.Key{Kind: "room", Identity: "1"}
	mine = placement.Record{Owner: placement.Member{Authority: "a", Token: 1}, Version: 1, Token: 5}
)

func TestConformance(t *testing.T) {
	cfg := redistest.Shared(t).Config()
	storagetest.Run(t, storagetest.Backend{Open: func(t testing.TB) storage.Storage { return mustOpen(t, cfg) }})
}

// A record counts when replicas have it.
func TestReplicasConfirm(t *testing.T) {
	primary, replica := redistest.NewWithPort(t), redistest.NewWithPort(t)
	replica.Follow(primary)
	cfg := primary.Config()
	cfg.MinReplicas, cfg.ConfirmWait = 1, redistest.StartTimeout
	s := mustOpen(t, cfg)
	if err := s.Store(context.Background(), "t", key, mine); err != nil {
		t.Fatal(err)
	}
	// On the replica nothing is read, which may be old.
	if _, err := open(t, replica.Config()); err == nil {
		t.Error("a replica was taken for the server")
	}
	replica.Kill()
	redistest.Eventually(t, "refused", func() error {
		err := s.Remove(context.Background(), "t", key, mine, false)
		if !errors.Is(err, redisconn.ErrUnconfirmed) {
			return errors.Join(errors.New("not refused"), err)
		}
		return nil
	})
}

// The user needs these rights, and no other.
func TestRights(t *testing.T) {
	server := redistest.New(t)
	words := []any{"ACL", "SETUSER", "kazahana", "on", ">secret", "~{kazahana}:*"}
	for command := range strings.FieldsSeq(commands) {
		words = append(words, "+"+command)
	}
	server.Do(t, words...)
	cfg, _, err := redisconn.ParseURL("redis+unix://kazahana:secret@"+server.Sock, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, cfg)
	if err := s.Store(context.Background(), "t", key, mine); err != nil {
		t.Error(err)
	}
	for command := range strings.FieldsSeq("get set") {
		server.Do(t, "ACL", "SETUSER", "kazahana", "-"+command)
		if _, err := open(t, cfg); err == nil || !strings.Contains(err.Error(), strings.ToUpper(command)) {
			t.Errorf("without %s: %v", command, err)
		}
		server.Do(t, "ACL", "SETUSER", "kazahana", "+"+command)
	}
}
