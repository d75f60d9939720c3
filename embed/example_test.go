package embed_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/kazahana/kazahana/embed"
)

// A program that makes its IDs itself. Its machine ID comes from a SQLite file here; with
// a URL of Redis, etcd, PostgreSQL or a lease server it is unique among hosts.
func Example() {
	dir, err := os.MkdirTemp("", "shop-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()

	ids, err := embed.Open(ctx, embed.Config{
		StateDir:    filepath.Join(dir, "ids"),                   // of this process alone
		Provider:    "sqlite:" + filepath.Join(dir, "leases.db"), // of all processes of the host
		LiveDir:     embed.None,                                  // leave this out: it is for the example's tidiness
		StartupWait: time.Minute,                                 // rather wait than make a fallback ID
		Fallback:    embed.Cached,                                // never random IDs
		Sequences:   map[string]embed.Sequence{"invoice:": {MaxValue: 999_999, OnMax: "error"}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer ids.Close()

	first, err := ids.NextID(ctx)
	if err != nil {
		log.Fatal(err)
	}
	more, err := ids.NextIDs(ctx, 1000)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("ascending:", 0 < first && first < more[0] && more[0] < more[999])

	number, err := ids.NextSequence(ctx, "invoice:2026")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("invoice", number)
	fmt.Println("mode:", ids.Status().Mode)

	// Output:
	// ascending: true
	// invoice 1
	// mode: regular
}

// Code that only needs strings takes an interface, and can be given UUIDs as well.
func ExampleStringGenerator() {
	// Seeds 003-2-6 and 003-3.2-1.
	name := func(g embed.StringGenerator) (string, error) { return g.NextString(context.Background()) }
	id, err := name(embed.UUIDs{Version: 7})
	fmt.Println(len(id), err)
	// Output: 36 <nil>
}
