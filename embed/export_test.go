package embed

import "github.com/kazahana/kazahana/internal/clock"

// WithClock replaces the host's clock.
func WithClock(c clock.Source) Option { return func(o *options) { o.wall = c } }

// IDError is the error of a request for IDs.
var IDError = idError
