package backend

import (
	"context"

	"github.com/kazahana/kazahana/internal/lazy"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/pool"
)

// Leases grants leases from records that are opened at its first use, and again as long as
// that fails. Once open, they stay: what a store forgot while it was away is the store's own
// matter.
type Leases struct {
	*pool.Provider
	records *lazyRecords
}

// lazyLeases grants leases from the records that open opens.
func lazyLeases(cfg pool.Config, open func(context.Context) (*opened, error)) (*Leases, error) {
	return newLeases(cfg, lazy.New("provider "+cfg.Info.URL, open, (*opened).close))
}

func newLeases(cfg pool.Config, records *lazy.Value[*opened]) (*Leases, error) {
	l := &Leases{records: &lazyRecords{Value: records}}
	cfg.Records, cfg.Close = l.records, records.Close
	var err error
	l.Provider, err = pool.New(cfg)
	return l, err
}

// Backup writes a consistent copy of a file of leases to another one, which must not exist.
func (l *Leases) Backup(ctx context.Context, to string) error {
	file, err := l.records.Get(ctx)
	if err != nil {
		return err
	}
	return file.backup(ctx, to)
}

// Opened returns once the provider's store is open, or says why it cannot be: OpenProvider
// returns a provider that opens it at the first use.
func Opened(ctx context.Context, p provider.Provider) error {
	if l, ok := p.(*Leases); ok {
		_, err := l.records.Get(ctx)
		return err
	}
	return nil
}
