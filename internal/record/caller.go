package record

import "context"

type (
	callerKey struct{}
	urgentKey struct{}
)

// By names who a call is for. A store that has more calls than it can carry out at a time
// gives callers their turn one after the other.
func By(ctx context.Context, caller string) context.Context {
	return context.WithValue(ctx, callerKey{}, caller)
}

// Caller is who a call is for, "" where By has not said.
func Caller(ctx context.Context) string {
	caller, _ := ctx.Value(callerKey{}).(string)
	return caller
}

// Urgent makes a call one that waits for no other call but urgent ones: it keeps what was
// granted, or gives it back.
func Urgent(ctx context.Context) context.Context { return context.WithValue(ctx, urgentKey{}, true) }

// IsUrgent reports whether Urgent has made the call so.
func IsUrgent(ctx context.Context) bool { return ctx.Value(urgentKey{}) != nil }
