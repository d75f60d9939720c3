package record

import "context"

type upkeepKey struct{}

// Upkeep says of a call that it keeps a grant, gives it back or looks at it. It waits for no
// other call of this process.
func Upkeep(ctx context.Context) context.Context { return context.WithValue(ctx, upkeepKey{}, true) }

// IsUpkeep reports whether Upkeep has said so.
func IsUpkeep(ctx context.Context) bool { return ctx.Value(upkeepKey{}) != nil }
