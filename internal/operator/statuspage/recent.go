package statuspage

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Limits of the kept part of a log.
const (
	maxEvents     = 50
	maxEventBytes = 1000 // of the message, and of its details
)

// Event is a warning or an error of the log. Repetitions of one message are one
// event.
type Event struct {
	At        int64  `json:"at"`    // Unix ms, the last time
	First     int64  `json:"first"` // Unix ms
	Count     int    `json:"count"`
	Level     string `json:"level"` // warn, error, ...
	Component string `json:"component"`
	Message   string `json:"message"`
	Details   string `json:"details"` // the line's other fields, of the last time
}

// Recent keeps a log's latest warnings and errors. It is safe for concurrent use.
type Recent struct {
	mu     sync.Mutex
	events []Event // the latest last
}

// Tee returns a logger that also fills r, at any level of the log.
func (r *Recent) Tee(log *zap.Logger) *zap.Logger {
	return log.WithOptions(zap.WrapCore(func(core zapcore.Core) zapcore.Core {
		return zapcore.NewTee(core, &recentCore{LevelEnabler: zapcore.WarnLevel, recent: r})
	}))
}

// Events returns the kept events, the latest first.
func (r *Recent) Events() []Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]Event, 0, len(r.events))
	for _, e := range slices.Backward(r.events) {
		out = append(out, e)
	}
	return out
}

func (r *Recent) add(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	same := func(o Event) bool {
		return o.Message == e.Message && o.Component == e.Component && o.Level == e.Level
	}
	if i := slices.IndexFunc(r.events, same); i >= 0 {
		e.First, e.Count = r.events[i].First, r.events[i].Count+1
		r.events = slices.Delete(r.events, i, i+1)
	}
	if len(r.events) >= maxEvents {
		r.events = slices.Delete(r.events, 0, 1)
	}
	r.events = append(r.events, e)
}

// recentCore is the zap core that fills Recent.
type recentCore struct {
	zapcore.LevelEnabler
	recent *Recent
	fields []zapcore.Field
}

func (c *recentCore) With(fields []zapcore.Field) zapcore.Core {
	return &recentCore{c.LevelEnabler, c.recent, slices.Concat(c.fields, fields)}
}

func (c *recentCore) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return checked.AddCore(e, c)
	}
	return checked
}

func (c *recentCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	named := zapcore.NewMapObjectEncoder()
	for _, f := range slices.Concat(c.fields, fields) {
		f.AddTo(named)
	}
	component, _ := named.Fields["component"].(string)
	delete(named.Fields, "component")
	var details []string
	for _, name := range slices.Sorted(maps.Keys(named.Fields)) {
		details = append(details, fmt.Sprintf("%s=%v", name, named.Fields[name]))
	}
	at := e.Time.UnixMilli()
	c.recent.add(Event{
		At: at, First: at, Count: 1, Level: e.Level.String(), Component: component,
		Message: shorten(e.Message), Details: shorten(strings.Join(details, " ")),
	})
	return nil
}

func (c *recentCore) Sync() error { return nil }

func shorten(text string) string {
	if len(text) <= maxEventBytes {
		return text
	}
	return strings.ToValidUTF8(text[:maxEventBytes], "") + "…"
}
