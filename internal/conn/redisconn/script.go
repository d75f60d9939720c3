package redisconn

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

//go:embed server.lua
var serverSource string

// NewScript joins the parts of a script after the common beginning, server.lua: the
// arguments by name as A, int, clock, server, acl. A script answers with an array that
// begins with the kind of the answer; only Redis's own refusals are errors.
func NewScript(parts ...string) *redis.Script {
	return redis.NewScript(serverSource + strings.Join(parts, ""))
}

// Args are the arguments of a script, by name.
type Args []any

// Set adds an argument.
func (a *Args) Set(name string, value any) { *a = append(*a, name, value) }

// Eval runs a script: by its hash, and in full where the server does not know
// it. All keys that the script uses must share the hash tag of key.
func (c *Client) Eval(ctx context.Context, conn redis.Scripter, s *redis.Script, key string, args Args) (*Reply, error) {
	if c.cfg.NowMS != nil {
		args.Set("now", c.cfg.NowMS())
	}
	answer, err := s.Run(ctx, conn, []string{key}, args...).StringSlice()
	if err != nil {
		return nil, err
	}
	if len(answer) == 0 {
		return nil, fmt.Errorf("a script gave no answer")
	}
	return &Reply{words: answer}, nil
}

// Refusal is the error for an answer of server.lua, or for an unknown answer. The answer's
// first word has been read.
func (c *Client) Refusal(word string, r *Reply) error {
	switch word {
	case "version":
		return fmt.Errorf("%w: its version is %s, and must be 7.0 or later", errServer, r.Text())
	case "policy":
		return fmt.Errorf("%w: its maxmemory-policy is %s, which deletes keys when memory is short, also those that must not be forgotten; "+
			"set it to noeviction", errServer, r.Text())
	case "norunid":
		return fmt.Errorf("%w: INFO does not tell its run_id, without which a restart goes unnoticed", errServer)
	case "acl":
		return fmt.Errorf("%w: the user's ACL does not allow %s on the keys %s*; the page on this provider has the rule to set",
			errServer, strings.ToUpper(r.Text()), c.cfg.Prefix)
	}
	return fmt.Errorf("a script gave an answer that this version does not know: %q", word)
}

// TooFewReplicas is the error for a script that changed nothing, because no more replicas
// than that are connected.
func (c *Client) TooFewReplicas(connected int64) error {
	return &tooFewReplicas{connected, c.cfg.MinReplicas, false}
}

type tooFewReplicas struct {
	connected int64
	wanted    int
	unknown   bool // an earlier try may have been carried out
}

func (e *tooFewReplicas) Error() string {
	outcome := "nothing was done"
	if e.unknown {
		outcome = "the connection broke during an earlier try, which may have been carried out"
	}
	return fmt.Sprintf("%v: %d are connected, and min_replicas=%d must confirm each write; %s", ErrUnconfirmed, e.connected, e.wanted, outcome)
}

func (e *tooFewReplicas) Unwrap() error { return ErrUnconfirmed }

// Reply is the answer of a script: words, read one after the other. Err returns the first
// error of all reads.
type Reply struct {
	words  []string
	at     int
	broken error
}

// Text is the next word, or "" if it cannot be read.
func (r *Reply) Text() string {
	if r.at >= len(r.words) {
		r.fail("it is too short")
		return ""
	}
	r.at++
	return r.words[r.at-1]
}

// Number is the next word as a number, or 0 if it cannot be read.
func (r *Reply) Number() int64 {
	n, err := strconv.ParseInt(r.Text(), 10, 64)
	if err != nil {
		r.fail("a number was expected")
	}
	return n
}

func (r *Reply) fail(why string) {
	if r.broken == nil {
		r.broken = fmt.Errorf("the answer of a script cannot be read: %s", why)
	}
}

// Err is the first error of reading words.
func (r *Reply) Err() error { return r.broken }
