package embed

import (
	"context"
	"log/slog"

	"go.uber.org/zap/zapcore"
)

// logTo passes the lines of the rooms inside on to the program's handler.
type logTo struct{ handler slog.Handler }

func slogLevel(l zapcore.Level) slog.Level {
	switch {
	case l <= zapcore.DebugLevel:
		return slog.LevelDebug
	case l == zapcore.InfoLevel:
		return slog.LevelInfo
	case l == zapcore.WarnLevel:
		return slog.LevelWarn
	}
	return slog.LevelError
}

// Enabled implements zapcore.Core.
func (c logTo) Enabled(l zapcore.Level) bool {
	return c.handler.Enabled(context.Background(), slogLevel(l))
}

// With implements zapcore.Core.
func (c logTo) With(fields []zapcore.Field) zapcore.Core {
	return logTo{c.handler.WithAttrs(attributes(fields))}
}

// Check implements zapcore.Core.
func (c logTo) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return checked.AddCore(e, c)
	}
	return checked
}

// Write implements zapcore.Core.
func (c logTo) Write(e zapcore.Entry, fields []zapcore.Field) error {
	r := slog.NewRecord(e.Time, slogLevel(e.Level), e.Message, 0)
	r.AddAttrs(attributes(fields)...)
	return c.handler.Handle(context.Background(), r)
}

// Sync implements zapcore.Core.
func (c logTo) Sync() error { return nil }

func attributes(fields []zapcore.Field) []slog.Attr {
	all := make([]slog.Attr, 0, len(fields))
	for _, f := range fields {
		one := zapcore.NewMapObjectEncoder()
		f.AddTo(one)
		if value, ok := one.Fields[f.Key]; ok { // a nil error has none
			all = append(all, slog.Any(f.Key, value))
		}
	}
	return all
}
