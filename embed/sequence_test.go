package embed_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/kazahana/kazahana/embed"
	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// Two programs on one store count together, without gaps.
func TestSequences(t *testing.T) {
	c, s := patient(t), testkit.NewSite(t)
	c.Store = s.Initialised(s.StartRedis().URL())
	start := int64(0)
	c.Sequences = map[string]embed.Sequence{
		"few:": {MaxValue: 3, OnMax: "error"}, "tens:": {Step: 10, Start: &start}, "blocks:": {Block: 100},
	}
	other := c
	other.StateDir += "-2"
	a, b := open(t, c), open(t, other)
	ctx := t.Context()
	for want := int64(1); want < 7; want++ {
		g := a
		if want%2 == 0 {
			g = b
		}
		if got, err := g.NextSequence(ctx, "orders"); err != nil || got != want { // seed 003-3.2-3
			t.Errorf("%d, %v, want %d", got, err, want)
		}
	}
	// Seeds 003-3.2-4 and 003-6.1-3.
	if got, err := a.NextSequences(ctx, "orders", 3); err != nil || !slices.Equal(got, []int64{7, 8, 9}) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := b.NextSequences(ctx, "tens:x", 3); err != nil || !slices.Equal(got, []int64{0, 10, 20}) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := b.NextSequences(ctx, "blocks:x", 3); err != nil || !slices.Equal(got, []int64{1, 2, 3}) {
		t.Errorf("%v, %v", got, err)
	}

	again := embed.WithRequestID("one-and-the-same")
	first, err := a.NextSequence(ctx, "retries", again)
	must.Succeed(t, err)
	if got, err := b.NextSequence(ctx, "retries", again); err != nil || got != first {
		t.Errorf("repeated: %d, %v, want %d", got, err, first)
	}
	if _, err := b.NextSequences(ctx, "retries", 2, again); !errors.Is(err, embed.ErrRequestIDReused) {
		t.Errorf("%v", err)
	}

	if _, err := a.NextSequences(ctx, "few:x", 2); err != nil {
		t.Error(err)
	}
	var exhausted *embed.SequenceExhaustedError
	if _, err := a.NextSequences(ctx, "few:x", 2); !errors.As(err, &exhausted) || exhausted.MaxValue != 3 || exhausted.Left != 1 {
		t.Errorf("%v", err)
	}
	for _, key := range []string{"", "a\nb"} {
		if _, err := a.NextSequence(ctx, key); !errors.Is(err, embed.ErrInvalidParams) {
			t.Errorf("key %q: %v", key, err)
		}
	}
	over, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := a.NextSequence(over, "orders"); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestSequencesWithoutStore(t *testing.T) {
	c := patient(t)
	c.Store = embed.None
	if _, err := open(t, c).NextSequence(t.Context(), "k"); !errors.Is(err, embed.ErrNoStore) {
		t.Errorf("%v", err)
	}
	away := patient(t)
	away.Store = "http://127.0.0.1:1"
	if _, err := open(t, away).NextSequence(t.Context(), "k"); !errors.Is(err, embed.ErrStoreUnavailable) {
		t.Errorf("%v", err)
	}
}
