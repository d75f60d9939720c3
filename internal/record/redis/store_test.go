package redis

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/conn/redisconn"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/proxytest"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

// count adds one to the number in a record.
func count(t *testing.T, s record.Store, term int64) (runs int, err error) {
	t.Helper()
	_, err = s.Change(testContext(t), record.Ask{Keys: []string{"n"}}, func(v record.View) ([]record.Write, error) {
		runs++
		return []record.Write{{Key: "n", Value: append(v.Records["n"].Value, 'I'), TermMS: term}}, nil
	})
	return runs, err
}

func (r *rig) value(key string) string { return string(r.view(key).Records[key].Value) }

// A change is sent again after its answer was lost. Where the first one was carried out, the second
// one meets another state, and is not carried out: what became of the change is not known.
func TestLostAnswer(t *testing.T) {
	server := redistest.New(t)
	proxy := proxytest.New(t, "unix", server.Sock)
	for i, c := range []struct {
		term      int64
		meanwhile string // what others do before the retry
		want      string
	}{
		{0, "", "II"}, {0, "counted", "III"}, {0, "gone", ""}, {0, "state", "II"}, {60 * minute, "", "II"}, {60 * minute, "gone", ""},
	} {
		r := newRig(t, server)
		other := r.store
		through := r.cfg
		through.Scheme, through.Addrs = "redis", []string{proxy.Addr()}
		r.store = mustOpen(t, through)
		if _, err := count(t, r.store, c.term); err != nil {
			t.Fatal(err)
		}
		proxy.Lose(func() {
			var err error
			switch c.meanwhile {
			case "counted":
				_, err = count(t, other, c.term)
			case "gone":
				_, err = put(t, other, record.Write{Key: "n"})
			case "state": // a grant that lasts longer than all before changes it
				_, err = put(t, other, grant("x", 50*time.Minute))
			}
			if err != nil {
				t.Error(err)
			}
		})
		if runs, err := count(t, r.store, c.term); !errors.Is(err, record.ErrOutrun) || runs != 1 {
			t.Errorf("case %d: %d runs, %v", i, runs, err)
		}
		if got := r.value("n"); got != c.want {
			t.Errorf("case %d: %s was counted, want %s", i, got, c.want)
		}
		// The memory of it is now right, or is not relied on.
		if _, err := count(t, r.store, c.term); err != nil || r.value("n") != c.want+"I" {
			t.Errorf("case %d: then it is %s (%v)", i, r.value("n"), err)
		}
	}
}

// A change takes one script where no other client was there. One too long to be remembered is
// seen when the commit fails.
func TestOneRoundTrip(t *testing.T) {
	server := redistest.New(t)
	r := newRig(t, server)
	r.put(record.Write{Key: "first", Value: []byte("1")}) // learns the life
	for i, w := range []record.Write{
		{Key: "new", Value: []byte("1")}, {Key: "new", Value: []byte("2"), TermMS: minute}, {Key: "first", Value: []byte("2")},
		{Key: "new", Mark: 5}, {Key: "new", Value: []byte("3")}, {Key: "long", Value: make([]byte, 16<<10)}, {Key: "long", Value: make([]byte, 16<<10)},
	} {
		want := "calls=1,"
		if i == 6 {
			want = "calls=2,"
		}
		r.store.looked.Store(int64(time.Hour)) // a slow machine looks at the server no sooner
		server.Do(t, "CONFIG", "RESETSTAT")
		r.put(w)
		if stats := server.Do(t, "INFO", "commandstats"); !strings.Contains(stats, "cmdstat_evalsha:"+want) || strings.Contains(stats, "cmdstat_eval:") {
			t.Errorf("change %d took %s", i, stats)
		}
	}
}

// A call of a sequence takes one script: a value under a request ID, a batch, which here saves
// four fifths of the scripts, and one that starts the key over and its life anew.
func TestSequenceInOneRoundTrip(t *testing.T) {
	server := redistest.New(t)
	s := mustOpen(t, server.Config())
	mustInit(t, s)
	sequences := sequence.OnRecords(s)
	startsOver := sequence.DefaultOptions()
	startsOver.Max, startsOver.TTL = 5, time.Hour
	for key, c := range map[string]struct {
		options sequence.Options
		count   int
		scripts int // for 100 values
	}{
		"single":      {sequence.DefaultOptions(), 1, 100},
		"batches":     {sequence.DefaultOptions(), 5, 20}, // seed 003-8.5-2
		"starts over": {startsOver, 5, 20},
	} {
		take := func(call int) {
			t.Helper()
			want := int64(call*c.count + 1)
			if c.options.Max > 0 {
				want = 1
			}
			r := sequence.Request{Tenant: "t", Key: key, Count: c.count, Options: c.options, RequestID: fmt.Sprint(call)}
			if got, err := sequences.Next(testContext(t), r); err != nil || got.First != want || got.Count != c.count {
				t.Errorf("%s: call %d: %+v (%v), want %d values from %d", key, call, got, err, c.count, want)
			}
		}
		take(0)
		s.looked.Store(int64(time.Hour)) // a slow machine looks at the server no sooner
		server.Do(t, "CONFIG", "RESETSTAT")
		for call := range c.scripts {
			take(call + 1)
		}
		stats := server.Do(t, "INFO", "commandstats")
		// Seed 003-8.3-1.
		if want := fmt.Sprintf("cmdstat_evalsha:calls=%d,", c.scripts); !strings.Contains(stats, want) || strings.Contains(stats, "cmdstat_eval:") {
			t.Errorf("%s: 100 values took %s, want %s", key, stats, want)
		}
		// Seed 003-8.3-3.
		if end := server.Do(t, "PEXPIRETIME", s.recordKey("seq/t/"+key)); (c.options.TTL == 0) != (end == "-1") || end == "-2" {
			t.Errorf("%s: the key expires at %s", key, end)
		}
	}
}

// Terms end by the server's clock. A record of which nothing is left to do then, Redis
// deletes by itself, once it is due and not before; others have an entry.
func TestServersClock(t *testing.T) {
	server := redistest.New(t)
	cfg := server.Config()
	s := mustOpen(t, cfg)
	mustInit(t, s)
	hour := time.Hour.Milliseconds()
	times := func(key string) (expires, due string) {
		return server.Do(t, "PEXPIRETIME", s.recordKey(key)), server.Do(t, "ZSCORE", s.dueKey(), key)
	}
	for name, w := range map[string]record.Write{
		"vanishes": {TermMS: hour, KeepMS: hour, Unlisted: true},
		"listed":   {TermMS: hour, KeepMS: hour},
		"marked":   {KeepMS: 2 * hour, Unlisted: true, Mark: 1},
		"watched":  {TermMS: 2 * hour, Unlisted: true, Tell: true},
		"forever":  {Unlisted: true},
	} {
		w.Key, w.Value = name, []byte("1")
		at, err := put(t, s, w)
		must.Succeed(t, err)
		end := fmt.Sprint(at + 2*hour)
		want := [2]string{"-1", end}
		switch name {
		case "vanishes":
			want = [2]string{end, "<nil>"}
		case "forever":
			want = [2]string{"-1", "<nil>"}
		}
		if expires, due := times(name); expires != want[0] || due != want[1] { // seed 003-8.1-5
			t.Errorf("%s expires at %s and is due at %s, want %v", name, expires, due, want)
		}
		w.TermMS, w.KeepMS = 0, 0
		if _, err := put(t, s, w); err != nil {
			t.Fatal(err)
		}
		if expires, due := times(name); expires != "-1" || due != "<nil>" {
			t.Errorf("%s, now forever, expires at %s and is due at %s", name, expires, due)
		}
	}
	if _, err := put(t, s, record.Write{Key: "short", Value: []byte("1"), TermMS: 1, KeepMS: hour}); err != nil {
		t.Fatal(err)
	}
	await.Success(t, "its end", func() error {
		v, err := s.Read(testContext(t), record.Ask{Keys: []string{"short"}})
		if err == nil && !v.Records["short"].Over {
			err = errors.New("it lasts")
		}
		return err
	})
}

// serverTime is the server's clock in Unix ms.
func serverTime(t *testing.T, server *redistest.Server) int64 {
	t.Helper()
	var seconds, micros int64
	_, err := fmt.Sscanf(server.Do(t, "TIME"), "[%d %d]", &seconds, &micros)
	must.Succeed(t, err)
	return seconds*1000 + micros/1000
}

// TestPresentTime: a rule that compares times is shown the server's, whatever the process takes
// for it.
func TestPresentTime(t *testing.T) {
	server := redistest.Shared(t)
	s := mustOpen(t, server.Config())
	mustInit(t, s)
	for _, wrong := range []int64{-60 * minute, 60 * minute} {
		_, err := put(t, s, record.Write{Key: "k", Value: []byte("1")})
		must.Succeed(t, err)
		s.ahead.Add(wrong)
		before := serverTime(t, server)
		at, err := s.Change(testContext(t), record.Ask{Keys: []string{"k"}, Fresh: true}, func(v record.View) ([]record.Write, error) {
			if after := serverTime(t, server); v.NowMS < before || v.NowMS > after { // seed 001-14
				t.Errorf("%d ms off, a rule is shown %d, and the server's time is %d to %d", wrong, v.NowMS, before, after)
			}
			return []record.Write{{Key: "k", Value: []byte("2")}}, nil
		})
		if err != nil || at < before {
			t.Errorf("the commit is at %d, after %d (%v)", at, before, err)
		}
	}
}

// TestSuspend: a host was suspended. Rules are shown a time after that, on what the process
// remembers: what they date with an earlier one would be over at once.
func TestSuspend(t *testing.T) {
	s := mustOpen(t, redistest.Shared(t).Config())
	mustInit(t, s)
	var shown []int64
	change := func() {
		t.Helper()
		shown = nil
		_, err := s.Change(testContext(t), record.Ask{Keys: []string{"k"}}, func(v record.View) ([]record.Write, error) {
			shown = append(shown, v.NowMS)
			return []record.Write{{Key: "k", Value: []byte("1")}}, nil
		})
		must.Succeed(t, err)
	}
	change() // its answer tells the server's time
	change()
	before := shown[0]
	elapsed := s.elapsed
	s.elapsed = func() time.Duration { return elapsed() + 15*time.Minute }
	s.looked.Store(int64(s.elapsed())) // another change has looked at the server
	change()
	if shown[0] < before+10*minute { // the estimate is ahead by as long as an answer took
		t.Errorf("15 minutes later a rule is shown a time that is %v later", time.Duration(shown[0]-before)*time.Millisecond)
	}
}

// A record that is written again and again moves its entry only when it would be late.
// The sweep sets right the rest, and finds records that went by themselves.
func TestSweep(t *testing.T) {
	server := redistest.New(t)
	r := newRig(t, server)
	entry := func(key, want string) {
		t.Helper()
		if due := server.Do(t, "ZSCORE", r.store.dueKey(), key); due != want {
			t.Errorf("%s is due at %s, want %s", key, due, want)
		}
	}
	r.put(record.Write{Key: "k", Value: []byte("1"), TermMS: minute})
	r.put(record.Write{Key: "by hand", Value: []byte("1"), TermMS: minute})
	server.Do(t, "DEL", r.store.recordKey("by hand"))
	r.Add(minute - 1)
	r.put(record.Write{Key: "k", Value: []byte("2"), TermMS: minute})
	entry("k", fmt.Sprint(began+minute))
	r.Add(1)
	if more, err := r.store.sweep(testContext(t)); err != nil || more {
		t.Errorf("the sweep: more %v, %v", more, err)
	}
	entry("by hand", "<nil>")
	entry("k", fmt.Sprint(began+2*minute-1))
	r.put(record.Write{Key: "k", Value: []byte("3"), TermMS: minute / 2}) // would be late
	entry("k", fmt.Sprint(began+minute+minute/2))
	for i := range 2 * record.MaxWrites {
		r.put(record.Write{Key: fmt.Sprint(i), Value: []byte("1"), TermMS: 1, Mark: int64(i)})
	}
	r.Add(minute)
	for more := true; more; {
		var err error
		if more, err = r.store.sweep(testContext(t)); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range []string{r.store.dueKey(), r.store.listKey()} {
		if n := server.Do(t, "ZCARD", key); n != "0" {
			t.Errorf("%s has %s entries", key, n)
		}
	}
}

// A change that replicas do not confirm is known to have been carried out. It is
// answered as such, and a rule that finds it there has no better answer, until they do.
func TestUnconfirmed(t *testing.T) {
	primary, replica := redistest.Pair(t)
	r := newRig(t, primary, func(c *redisconn.Config) { c.MinReplicas = 1 })
	r.put(record.Write{Key: "k", Value: []byte("1")})
	hasty := r.cfg
	hasty.ConfirmWait = 100 * time.Millisecond
	replica.Signal(syscall.SIGSTOP)
	same := func(s record.Store) error { // writes nothing where it was there
		_, err := s.Change(testContext(t), record.Ask{Keys: []string{"k"}}, func(v record.View) ([]record.Write, error) {
			if string(v.Records["k"].Value) == "2" {
				return nil, nil
			}
			return []record.Write{{Key: "k", Value: []byte("2")}}, nil
		})
		return err
	}
	for range 3 {
		if err := same(mustOpen(t, hasty)); !errors.Is(err, record.ErrUnconfirmed) {
			t.Fatalf("the error is %v, want ErrUnconfirmed", err)
		}
	}
	replica.Signal(syscall.SIGCONT)
	if err := same(r.store); err != nil {
		t.Error(err)
	}
	// The outcome of a change is unknown where the answer is lost with the replica.
	proxy := proxytest.New(t, "unix", primary.Sock)
	through := r.cfg
	through.Scheme, through.Addrs = "redis", []string{proxy.Addr()}
	far := mustOpen(t, through)
	if err := same(far); err != nil {
		t.Error(err)
	}
	far.looked.Store(int64(time.Hour)) // a slow machine looks at the server no sooner: that answer would be lost instead
	proxy.Lose(func() { redistest.CutOff(t, primary, replica) })
	_, err := put(t, far, record.Write{Key: "lost", Value: []byte("1")})
	if !errors.Is(err, redisconn.ErrUnconfirmed) || !strings.Contains(err.Error(), "may have been carried out") || strings.Contains(err.Error(), "nothing was done") {
		t.Errorf("after a lost answer the error is %v", err)
	}
	if r.value("lost") != "1" {
		t.Error("the change was not carried out: the test does not show what it should")
	}
	replica.Kill()
	await.Eventually(t, "the primary notices", func() bool {
		return strings.Contains(primary.Do(t, "INFO", "replication"), "connected_slaves:0")
	})
	if _, err := put(t, r.store, record.Write{Key: "k", Value: []byte("3")}); !errors.Is(err, redisconn.ErrUnconfirmed) || errors.Is(err, record.ErrUnconfirmed) || !strings.Contains(err.Error(), "nothing was done") {
		t.Errorf("without a replica the error is %v", err)
	}
	if text := primary.Do(t, "GET", r.store.recordKey("k")); !strings.HasSuffix(text, "2") {
		t.Errorf("without a replica it was changed to %q", text)
	}
}

// The user needs these rights, and no other.
func TestRights(t *testing.T) {
	server := redistest.New(t)
	words := []string{"on", ">secret", "~{kazahana}:*", "&{kazahana}:@*"}
	fixed := len(words) - 1 // the channel is a right that can be missing too
	for word := range strings.FieldsSeq(commands) {
		words = append(words, "+"+word)
	}
	set := func(words []string) { server.SetUser(t, "kazahana", words) }
	set(words)
	cfg, _, err := redisconn.ParseURL("redis+unix://kazahana:secret@"+server.Sock, nil)
	must.Succeed(t, err)
	r := &rig{T: t, cfg: cfg}
	r.store = mustOpen(t, cfg)
	mustInit(t, r.store)
	tokens, err := r.store.Watch(testContext(t), "k/")
	must.Succeed(t, err)
	w := record.Write{Key: "k/1", Value: []byte("1"), TermMS: 1, Mark: 5, Tell: true}
	r.put(w)
	receive(t, tokens)
	w.TermMS = minute
	r.put(w)
	r.put(record.Write{Key: "k/1"})
	w.TermMS = 1
	r.put(w)
	await.Eventually(t, "it is swept", func() bool {
		if _, err := r.store.sweep(testContext(t)); err != nil {
			t.Fatal(err)
		}
		return r.value("k/1") == ""
	})
	if _, err := r.store.List(testContext(t), "k", "", 1); err != nil {
		t.Error(err)
	}
	page, err := os.ReadFile("../../../docs/providers/redis.md")
	must.Succeed(t, err)
	if rule := "'&{kazahana}:@*' +" + strings.ReplaceAll(commands, " ", " +") + " +select\n"; !strings.Contains(string(page), rule) {
		t.Errorf("docs/providers/redis.md does not show the rule %s", rule)
	}
	for i, word := range words[fixed:] {
		set(slices.Delete(slices.Clone(words), fixed+i, fixed+i+1))
		if err := mustOpen(t, cfg).Check(testContext(t)); err == nil || !strings.Contains(err.Error(), "ACL") && !strings.Contains(err.Error(), "NOPERM") {
			t.Errorf("without %s the error is %v", word, err)
		}
	}
}

// A server that is not one to rely on is refused, also when a setting is changed later.
func TestUnfitServers(t *testing.T) {
	server := redistest.New(t)
	r := newRig(t, server)
	refused := func(words string) {
		t.Helper()
		if err := mustOpen(t, r.cfg).Check(testContext(t)); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("the error is %v, want one with %q", err, words)
		}
	}
	server.Do(t, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	await.Success(t, "refused", func() error {
		_, err := put(t, r.store, grant("k", time.Minute))
		if err == nil || !strings.Contains(err.Error(), "noeviction") {
			return fmt.Errorf("the error is %v", err)
		}
		return nil
	})
	// It stays refused: a refusal is no look that found all well.
	for range 3 {
		if _, err := put(t, r.store, grant("k", time.Minute)); err == nil || !strings.Contains(err.Error(), "noeviction") {
			t.Errorf("the error is %v", err)
		}
	}
	refused("noeviction")
	server.Do(t, "CONFIG", "SET", "maxmemory-policy", "noeviction")
	r.put(grant("k", time.Minute))
	text := server.Do(t, "GET", r.store.stateKey())
	server.Do(t, "SET", r.store.stateKey(), strings.Replace(text, `"format":"1"`, `"format":"2"`, 1))
	refused("format 2")
	server.Do(t, "SET", r.store.stateKey(), "what?")
	refused("damaged")
}

// A record that cannot be read is an error, and stays.
func TestDamagedRecord(t *testing.T) {
	server := redistest.New(t)
	r := newRig(t, server)
	for _, text := range []string{"x", "\x80", "\x80abc", "\x81abcd", "\x82abcd\x01\x04text", "\x01\x02\x03\x04\x05\x06", "\x01\x02\x03\x04\x05\x06\x00abcd\xff", "\x01\x02\x03\x04\x05\x06\x80abcd\x01\x01"} {
		server.Do(t, "SET", r.store.recordKey("k"), text)
		if _, err := put(t, r.store, grant("k", time.Minute)); err == nil || !strings.Contains(err.Error(), `record "k" is damaged`) {
			t.Errorf("of %q came the error %v", text, err)
		}
		if now := server.Do(t, "GET", r.store.recordKey("k")); now != text {
			t.Errorf("%q became %q", text, now)
		}
	}
	// The sweep passes it by, and deletes the others.
	due := record.Write{Value: []byte("1"), TermMS: 1, Mark: 1}
	for _, due.Key = range []string{"damaged", "of another type", "due"} {
		r.put(due)
	}
	server.Do(t, "SET", r.store.recordKey("damaged"), "\x80")
	server.Do(t, "DEL", r.store.recordKey("of another type"))
	server.Do(t, "LPUSH", r.store.recordKey("of another type"), "1")
	r.Add(minute)
	for range 2 {
		if more, err := r.store.sweep(testContext(t)); err != nil || more {
			t.Errorf("the sweep: more %v, %v", more, err)
		}
	}
	if n := server.Do(t, "EXISTS", r.store.recordKey("due"), r.store.recordKey("damaged")); n != "1" {
		t.Errorf("%s records are there, want the damaged one", n)
	}
	if due := server.Do(t, "ZSCORE", r.store.dueKey(), "damaged"); due != fmt.Sprint(r.Load()+putOff.Milliseconds()) {
		t.Errorf("the damaged record is due at %s", due)
	}
}

// receive waits for a token.
func receive(t *testing.T, tokens <-chan struct{}) {
	t.Helper()
	if !received(t, tokens) {
		t.Fatal("the channel was closed")
	}
}

// ended waits until the channel is closed.
func ended(t *testing.T, tokens <-chan struct{}) {
	t.Helper()
	for received(t, tokens) {
	}
}

// received waits for a token or for the end of the channel.
func received(t *testing.T, tokens <-chan struct{}) (open bool) {
	t.Helper()
	select {
	case _, open = <-tokens:
	case <-time.After(await.Patience):
		t.Fatal("nothing comes")
	}
	return open
}

func (r *rig) watch(ctx context.Context, prefix string) <-chan struct{} {
	r.Helper()
	tokens, err := r.store.Watch(ctx, prefix)
	must.Succeed(r, err)
	return tokens
}

func (r *rig) tell(key string) {
	r.Helper()
	r.put(record.Write{Key: key, Value: []byte("1"), Tell: true})
}

func subscribers(t *testing.T, s *redistest.Server) int {
	t.Helper()
	return strings.Count(s.Do(t, "CLIENT", "LIST", "TYPE", "PUBSUB"), "id=")
}

// All watches of a client share one connection, which is there as long as one of them
// is; each hears of its own records.
func TestWatchesShare(t *testing.T) {
	server := redistest.New(t)
	r := newRig(t, server)
	ctx, cancel := context.WithCancel(testContext(t))
	rest, cancelRest := context.WithCancel(testContext(t))
	one, two, other, all := r.watch(ctx, "d/a"), r.watch(rest, "d/a"), r.watch(rest, "d/b"), r.watch(rest, "d/")
	if n := subscribers(t, server); n != 1 {
		t.Errorf("%d connections are subscribed, want 1", n)
	}
	r.tell("d/a")
	for _, tokens := range []<-chan struct{}{one, two, all} {
		receive(t, tokens)
	}
	r.tell("d/b")
	receive(t, other)
	receive(t, all)
	if len(one)+len(two) > 0 {
		t.Error("a change of another record is told")
	}
	cancel()
	ended(t, one)
	again := r.watch(rest, "d/a")
	r.tell("d/a")
	receive(t, two)
	receive(t, again)
	cancelRest()
	for _, tokens := range []<-chan struct{}{two, again, other, all} {
		ended(t, tokens)
	}
	await.Eventually(t, "the connection is closed", func() bool { return subscribers(t, server) == 0 })
	last := r.watch(testContext(t), "d/")
	if err := r.store.Store.Close(); err != nil {
		t.Error(err)
	}
	ended(t, last)
	if _, err := r.store.Watch(testContext(t), "d/"); err == nil {
		t.Error("a closed store can be watched")
	}
}

// A watch that begins while its channel's subscription comes and goes hears of the next
// change all the same.
func TestWatchesComeAndGo(t *testing.T) {
	r := newRig(t, redistest.Shared(t))
	r.watch(testContext(t), "keeps the connection")
	for range 200 {
		ctx, cancel := context.WithCancel(testContext(t))
		tokens := r.watch(ctx, "a")
		r.tell("a")
		receive(t, tokens)
		cancel()
	}
}

// The library subscribes anew by itself: a confirmation may come twice.
func TestConfirmedTwice(t *testing.T) {
	r := newRig(t, redistest.Shared(t))
	tokens := r.watch(testContext(t), "a")
	all := &r.store.watchers
	all.mu.Lock()
	s := all.current
	all.mu.Unlock()
	s.confirm(r.store.channelOf("a"))
	r.tell("a")
	receive(t, tokens)
}

// After a lost connection, or on a server that says nothing, watches end; the next one
// is served again.
func TestWatchConnectionLost(t *testing.T) {
	server := redistest.New(t)
	r := newRig(t, server)
	tokens := r.watch(testContext(t), "a")
	server.Do(t, "CLIENT", "KILL", "TYPE", "PUBSUB")
	ended(t, tokens)
	tokens = r.watch(testContext(t), "a")
	r.tell("a")
	receive(t, tokens)

	impatient := mustOpen(t, r.cfg)
	impatient.watchers.pingAfter = 2 * time.Second
	short, err := impatient.Watch(testContext(t), "a")
	must.Succeed(t, err)
	server.Signal(syscall.SIGSTOP)
	ended(t, short)
	ctx, cancel := context.WithTimeout(testContext(t), 100*time.Millisecond)
	defer cancel()
	if _, err := impatient.Watch(ctx, "a"); err == nil {
		t.Error("a frozen server can be watched")
	}
	server.Signal(syscall.SIGCONT)
	tokens = r.watch(testContext(t), "b")
	r.tell("b")
	receive(t, tokens)
	server.Kill()
	ended(t, tokens)
}
