package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/kazahana/kazahana/internal/sequence"
)

// declareFlags write an operator's declaration of a sequence to the store itself.
// Their defaults are serve's.
type declareFlags struct {
	Declare   *int64 `name:"declare" group:"Declaring" placeholder:"LAST" help:"Instead of taking values, say on the store that LAST was the last one handed out: the next one follows it. Nothing checks that. It ends the key's fence, and has it count as the configuration says."`
	Sequences string `name:"sequences" group:"Declaring" placeholder:"MAP" help:"How keys count (default as for serve)."`
	Tenant    string `name:"tenant" group:"Declaring" default:"default" placeholder:"NAME" help:"Owner of the sequence: default, or a tenant of the lease server."`

	storeFlags `group:"Declaring"`
}

// declare writes the declaration to the store, and says how the key goes on.
func (f *declareFlags) declare(s *system, key string) error {
	k, err := f.open(s, given("sequences", f.Sequences)...)
	if err != nil {
		return err
	}
	defer func() { _ = k.Close(s.ctx) }()
	d := sequence.Declaration{Tenant: f.Tenant, Key: key, Last: *f.Declare}
	d.Options, _ = k.Options(key)
	if err := d.Validate(); err != nil {
		return usageError{errors.New("--declare: " + strings.TrimPrefix(err.Error(), sequence.ErrInvalid.Error()+": "))}
	}
	err = calling(s, k, func(ctx context.Context) error { return k.Store.Declare(ctx, d) })
	if errors.Is(err, errors.ErrUnsupported) {
		return fmt.Errorf("the store %s takes no declarations", k.Store.URL)
	}
	if err != nil {
		return fmt.Errorf("sequence %q on %s: %w", key, k.Store.URL, err)
	}
	_, err = fmt.Fprintf(s.out, "sequence %q on %s goes on after %d, with %s\n", key, k.Store.URL, d.Last, d.Options.Text())
	return err
}
