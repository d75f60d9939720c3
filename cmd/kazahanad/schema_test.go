package main

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// testdata/schema-1 is what the first version of every store's schema looks like,
// as a daemon left it that was killed: it held a lease (the machine IDs below),
// had taken 1 to 5 of the sequence orders, and the lock report three times. A new version
// of a schema keeps these files, and adds its own.
const firstSchema = "testdata/schema-1"

const sqliteHeld, redisHeld, etcdHeld = 914, 1099, 6038

// firstFiles puts the files of the first schema into a state directory.
func (s *site) firstFiles() {
	s.T.Helper()
	if err := os.MkdirAll(s.State, 0o700); err != nil {
		s.T.Fatal(err)
	}
	for _, name := range []string{"leases.db", "store.db"} {
		packed, err := os.ReadFile(filepath.Join(firstSchema, name+".gz"))
		if err != nil {
			s.T.Fatal(err)
		}
		r, err := gzip.NewReader(bytes.NewReader(packed))
		if err != nil {
			s.T.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			s.T.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(s.State, name), content, 0o600); err != nil {
			s.T.Fatal(err)
		}
	}
}

// goesOn checks that the daemon at the site goes on where the one before ended.
// lastToken is the fencing token of the lock report.
func (s *site) goesOn(held int64, lastToken int64, args ...string) {
	s.T.Helper()
	d := s.Start(args...)
	var id struct {
		MachineID int64  `json:"machine_id"`
		Kind      string `json:"kind"`
	}
	testkit.DecodeJSON(s.T, s.Kazahanad("inspect", "--json", strings.TrimSpace(s.Kazahanad("id", "--regular-only").OK(s.T))).OK(s.T), &id)
	if id.MachineID == held || id.Kind != "regular" {
		s.T.Errorf("the ID is %+v, and machine ID %d is of a lease that may be used elsewhere", id, held)
	}
	if next, err := strconv.Atoi(strings.TrimSpace(s.Kazahanad("seq", "orders").OK(s.T))); err != nil || next != 6 {
		s.T.Errorf("the sequence goes on with %d, after 5 (%v)", next, err)
	}
	token, err := strconv.ParseInt(strings.TrimSpace(s.Kazahanad("lock", "-q", "report", "--", "sh", "-c", "echo $KAZAHANA_FENCING_TOKEN").OK(s.T)), 10, 64)
	if err != nil || token <= lastToken {
		s.T.Errorf("the lock's token is %d, after %d (%v)", token, lastToken, err)
	}
	d.Terminate()
	d.AwaitEnd()
}

func (s *site) knowsHolder(provider string, held int64) {
	s.T.Helper()
	if out := s.Kazahanad("leases", "--all", "--config", "none", "--provider", provider).OK(s.T); !strings.Contains(out, fmt.Sprintf("\n%d ", held)) {
		s.T.Errorf("the lease of machine ID %d is not known any more:\n%s", held, out)
	}
}

func TestFirstSchemaOfFiles(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.firstFiles()
	leases := "sqlite:" + filepath.Join(s.State, "leases.db")
	s.knowsHolder(leases, sqliteHeld)
	// The files are copies, and may lack something.
	s.Initialised(leases)
	s.goesOn(sqliteHeld, 3)
}

func TestFirstSchemaOnRedis(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	url, _ := s.firstRedis()
	s.knowsHolder(url, redisHeld)
	// The server is another one, and may have forgotten something.
	s.Initialised(url)
	s.goesOn(redisHeld, 1795382794740003, "--provider", url)
}

func TestFirstSchemaOnEtcd(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	url, _ := s.firstEtcd()
	s.knowsHolder(url, etcdHeld)
	s.goesOn(etcdHeld, 3, "--provider", url)
}

// firstRedis starts a server with the keys of the first format.
func (s *site) firstRedis() (url string, client *redis.Client) {
	s.T.Helper()
	r := s.StartRedis()
	client = redis.NewClient(&redis.Options{Addr: r.Address})
	s.T.Cleanup(func() { _ = client.Close() })
	var keys map[string]struct {
		Type   string         `json:"type"`
		Value  map[string]any `json:"value"`
		Base64 []byte         `json:"base64"` // of a string
	}
	s.readFixture("redis.json", &keys)
	for key, k := range keys {
		if k.Type == "string" {
			if err := client.Set(s.T.Context(), key, k.Base64, 0).Err(); err != nil {
				s.T.Fatalf("%s: %v", key, err)
			}
		}
		for member, value := range k.Value {
			var err error
			switch k.Type {
			case "hash":
				err = client.HSet(s.T.Context(), key, member, value).Err()
			case "zset":
				err = client.ZAdd(s.T.Context(), key, redis.Z{Member: member, Score: value.(float64)}).Err()
			default:
				err = fmt.Errorf("it is a %s", k.Type)
			}
			if err != nil {
				s.T.Fatalf("%s: %v", key, err)
			}
		}
	}
	return strings.TrimSuffix(r.URL(), "?"), client
}

// firstEtcd starts a cluster with the keys of the first format.
func (s *site) firstEtcd() (url string, client *clientv3.Client) {
	s.T.Helper()
	var endpoints []string
	for _, m := range s.StartEtcd() {
		endpoints = append(endpoints, m.Client)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Context: s.T.Context()})
	if err != nil {
		s.T.Fatal(err)
	}
	s.T.Cleanup(func() { _ = client.Close() })
	keys := map[string]string{}
	s.readFixture("etcd.json", &keys)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		value := keys[key]
		if packed, ok := strings.CutPrefix(value, "base64:"); ok {
			text, err := base64.StdEncoding.DecodeString(packed)
			if err != nil {
				s.T.Fatal(err)
			}
			value = string(text)
		}
		if _, err := client.Put(s.T.Context(), key, value); err != nil {
			s.T.Fatal(err)
		}
	}
	return "etcd://" + strings.Join(endpoints, ","), client
}

func (s *site) readFixture(name string, into any) {
	s.T.Helper()
	text, err := os.ReadFile(filepath.Join(firstSchema, name))
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		s.T.Fatal(err)
	}
}

func TestNewerFormatOnRedis(t *testing.T) {
	t.Parallel()
	for record, ask := range askShared {
		t.Run(record, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			url, client := s.firstRedis()
			key := "{kazahana}:" + record
			if record == "@rec" { // its format is in JSON
				was, err := client.Get(t.Context(), key).Result()
				now := strings.Replace(was, `"format":"1"`, `"format":"2"`, 1)
				if err == nil && now != was {
					err = client.Set(t.Context(), key, now, 0).Err()
				}
				if err != nil || now == was {
					t.Fatalf("%s is %q: %v", key, was, err)
				}
			} else {
				if was, err := client.HGet(t.Context(), key, "format").Result(); was != "1" || err != nil {
					t.Fatalf("%s has the format %q: %v", key, was, err)
				}
				if err := client.HSet(t.Context(), key, "format", "2").Err(); err != nil {
					t.Fatal(err)
				}
			}
			ask(s, url).Fails(t, exitFailure, key, "written by a newer kazahanad (format 2, this one knows up to 1)", "docs/compatibility.md")
		})
	}
}

func TestNewerFormatOnEtcd(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	url, client := s.firstEtcd()
	if _, err := client.Put(t.Context(), "/kazahana/@format", "2"); err != nil {
		t.Fatal(err)
	}
	for _, ask := range askShared {
		ask(s, url).Fails(t, exitFailure, "/kazahana/@format", "written by a newer kazahanad (format ", "this one knows up to 1)", "docs/compatibility.md")
	}
}

// askShared are questions that need the record, by its name on Redis.
var askShared = map[string]func(s *site, url string) testkit.Outcome{
	"default:pool": func(s *site, url string) testkit.Outcome {
		return s.Kazahanad("leases", "--config", "none", "--provider", url)
	},
	"@rec": func(s *site, url string) testkit.Outcome { return s.askDaemon(url, "seq", "orders") },
}

func (s *site) askDaemon(store string, args ...string) testkit.Outcome {
	d := s.Start("--provider", "none:", "--store", store)
	defer d.Kill()
	return s.Kazahanad(args...)
}
