package backend

import (
	"context"
	"errors"
	"testing"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/memory"
)

// What a store lacks is an error.
func TestWhatTheStoreLacks(t *testing.T) {
	p := newOnUse(provider.Info{Name: "memory", URL: "memory:"}, func(context.Context) (provider.Provider, error) {
		return opened(memory.New(memory.NewStore(nil), provider.Services{Default: provider.DefaultTerms()}))
	})
	if err := p.Init(t.Context(), ""); !errors.Is(err, errors.ErrUnsupported) || err.Error() != "the provider memory: it needs no declaration" {
		t.Errorf("Init: %v", err)
	}
	if _, err := p.Fence(t.Context()); !errors.Is(err, errors.ErrUnsupported) || err.Error() != "the provider memory: it is not fenced by hand" {
		t.Errorf("Fence: %v", err)
	}
	if fenced := p.Fenced(); fenced != nil {
		t.Errorf("Fenced: %v", fenced)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}
