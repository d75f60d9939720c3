package sequencetest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/kazahana/kazahana/internal/sequence"
)

// naive is a sequence as one would write it without thinking of speed or
// limits: it counts value by value.
type naive struct {
	options sequence.Options
	made    bool
	last    int64 // the value handed out last; none has been in a run that begins
	begins  bool
	idle    time.Duration
	answers []answer // the latest calls
}

type answer struct {
	id     string
	values []int64
}

// upTo returns the next values, as many as there are of count.
func (n *naive) upTo(count int) []int64 {
	var values []int64
	v := n.last + n.options.Step
	if n.begins {
		v = n.options.First()
	}
	for len(values) < count && v <= n.options.Limit() {
		values = append(values, v)
		v += n.options.Step
	}
	return values
}

func (n *naive) next(r sequence.Request) (values []int64, want string) {
	if n.made && n.options.TTL > 0 && n.idle >= n.options.TTL {
		*n = naive{}
	}
	if !n.made {
		*n = naive{options: r.Options, made: true, begins: true}
	}
	if n.options != r.Options {
		return nil, "mismatch"
	}
	least := r.AtLeast
	if least == 0 {
		least = r.Count
	}
	for _, a := range n.answers {
		if a.id == r.RequestID && len(a.values) >= least && len(a.values) <= r.Count {
			n.idle = 0
			return a.values, ""
		}
		if a.id == r.RequestID {
			return nil, "reused"
		}
	}
	values = n.upTo(r.Count)
	if len(values) < least {
		if n.options.OnMax == sequence.Fail {
			return nil, "exhausted"
		}
		n.begins = true
		values = n.upTo(r.Count)
	}
	n.last, n.begins, n.idle = values[len(values)-1], false, 0
	if r.RequestID != "" {
		n.answers = append(n.answers[max(0, len(n.answers)+1-sequence.MaxReceipts):], answer{r.RequestID, values})
	}
	return values, ""
}

func outcome(err error) string {
	var mismatch *sequence.MismatchError
	var exhausted *sequence.ExhaustedError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &mismatch):
		return "mismatch"
	case errors.As(err, &exhausted):
		return "exhausted"
	case errors.Is(err, sequence.ErrRequestReused):
		return "reused"
	}
	return err.Error()
}

// model compares the store with the naive model, over two clients of it.
func model(r *rig) {
	stores := []sequence.Store{r.store, r.open()}
	run := 0
	rapid.Check(r.T, func(t *rapid.T) {
		run++
		ways := make([]sequence.Options, 2)
		for i := range ways {
			ways[i] = sequence.Options{
				Step:     rapid.Int64Range(1, 4).Draw(t, "step"),
				Start:    rapid.Int64Range(0, 5).Draw(t, "start"),
				StartSet: true,
				Max:      rapid.Int64Range(30, 60).Draw(t, "max"),
				OnMax:    rapid.SampledFrom([]sequence.OnMax{sequence.Reset, sequence.Fail}).Draw(t, "on max"),
			}
			if r.target.Advance != nil && rapid.Bool().Draw(t, "with ttl") {
				ways[i].TTL = time.Duration(rapid.IntRange(5, 20).Draw(t, "ttl")) * time.Second
			}
		}
		models := map[string]*naive{"a": {}, "b": {}}
		for range rapid.IntRange(1, 40).Draw(t, "calls") {
			if r.target.Advance != nil && rapid.IntRange(0, 3).Draw(t, "time") == 0 {
				d := time.Duration(rapid.IntRange(0, 12).Draw(t, "seconds")) * time.Second
				r.target.Advance(d)
				for _, m := range models {
					m.idle += d
				}
			}
			key := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "key")
			way := map[string]int{"a": 0, "b": 1}[key]
			if rapid.IntRange(0, 9).Draw(t, "other options") == 0 {
				way = 1 - way
			}
			req := request(fmt.Sprintf("%d/%s", run, key), rapid.IntRange(1, 6).Draw(t, "count"), ways[way])
			req.AtLeast = rapid.IntRange(0, req.Count).Draw(t, "at least")
			if rapid.Bool().Draw(t, "named") {
				req.RequestID = fmt.Sprint("request-", rapid.IntRange(0, 20).Draw(t, "request"))
			}
			got, err := rapid.SampledFrom(stores).Draw(t, "store").Next(r.context(), req)
			values, want := models[key].next(req)
			if outcome(err) != want || err == nil && !slices.Equal(got.Values(), values) {
				t.Fatalf("%+v: %v (%v), want %v %s", req, got.Values(), err, values, want)
			}
		}
	})
}
