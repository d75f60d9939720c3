package backend

import (
	"context"
	"errors"
	"testing"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/static"
)

// What a store lacks is an error.
func TestWhatTheStoreLacks(t *testing.T) {
	p := newLazy(provider.Info{Name: "none", URL: "none:"}, func(context.Context) (provider.Provider, error) {
		return static.None{Lacking: "none"}, nil
	})
	if err := p.Init(t.Context(), ""); !errors.Is(err, errors.ErrUnsupported) || err.Error() != "the provider none: it needs no declaration" {
		t.Errorf("Init: %v", err)
	}
	if _, err := p.Fence(t.Context()); !errors.Is(err, errors.ErrUnsupported) || err.Error() != "the provider none: it is not fenced by hand" {
		t.Errorf("Fence: %v", err)
	}
	if fenced := p.Fenced(); fenced != nil {
		t.Errorf("Fenced: %v", fenced)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}
