package main

import (
	"bytes"
	"fmt"
	stdlog "log"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/operator/logqueue"
	"github.com/kazahana/kazahana/internal/operator/statuspage"
	"github.com/kazahana/kazahana/internal/operator/systemd"
)

// daemonLog is the log of a daemon or a lease server.
type daemonLog struct {
	*zap.Logger
	recent  *statuspage.Recent // its warnings and errors, for the status page
	dropped func() uint64      // lines that stderr did not take
}

// queueStderr puts a queue in front of stderr, for processes that must never wait
// for it. flush ends it.
func (s *system) queueStderr() {
	s.queue = logqueue.New(s.err)
	s.err = s.queue
	// Without a handler, SIGPIPE ends the process when the reader of stderr is gone.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	stdlog.SetOutput(s.err)
}

// flush gives the last lines a moment to reach stderr.
func (s *system) flush() {
	if s.queue != nil {
		_ = s.queue.Close()
	}
}

// newLogger logs to stderr: readable text on a terminal, JSON elsewhere.
func newLogger(level string, format config.LogFormat, s *system) (*daemonLog, error) {
	atLeast, err := zap.ParseAtomicLevel(level)
	if err != nil {
		return nil, fmt.Errorf("log_level: %w", err)
	}
	s.level, s.format = atLeast, format
	sink := zapcore.AddSync(s.err)
	l := &daemonLog{recent: &statuspage.Recent{}, dropped: func() uint64 { return 0 }}
	if s.queue == nil {
		sink = zapcore.Lock(sink)
	} else {
		l.dropped = s.queue.Dropped
		s.queue.OnDrained(l.tellDropped)
	}
	core := zapcore.NewCore(newEncoder(format, s), sink, atLeast)
	l.Logger = l.recent.Tee(zap.New(core, zap.ErrorOutput(sink)))
	stdlog.SetFlags(0)
	stdlog.SetOutput(libraryLog{l.Logger})
	return l, nil
}

func newEncoder(format config.LogFormat, s *system) zapcore.Encoder {
	var encoder zapcore.Encoder
	if format.Resolve(s.terminal) == config.LogConsole {
		c := zap.NewDevelopmentEncoderConfig()
		c.EncodeTime = zapcore.TimeEncoderOfLayout("15:04:05.000")
		c.EncodeLevel = zapcore.CapitalColorLevelEncoder
		if !s.terminal {
			c.EncodeLevel = zapcore.CapitalLevelEncoder
		}
		encoder = zapcore.NewConsoleEncoder(c)
	} else {
		c := zap.NewProductionEncoderConfig()
		c.EncodeTime = zapcore.RFC3339NanoTimeEncoder
		c.EncodeDuration = zapcore.StringDurationEncoder
		encoder = zapcore.NewJSONEncoder(c)
	}
	if s.journal {
		encoder = systemd.JournalEncoder(encoder)
	}
	return encoder
}

// daemons are the commands with a log, by the component that starts and ends them.
var daemons = map[string]string{"serve": "serve", "lease-server": "leaseserver"}

// logsJSON reports whether the command writes a log in JSON. Before the configuration is
// read, it is the default format.
func (s *system) logsJSON() bool {
	return len(s.args) > 0 && daemons[s.args[0]] != "" && !slices.Contains(s.args, "--check") && s.format.Resolve(s.terminal) == config.LogJSON
}

// logFatal logs the reason of a daemon's end.
func (s *system) logFatal(text string, code int) {
	log := zap.New(zapcore.NewCore(newEncoder(config.LogJSON, s), zapcore.AddSync(s.err), zap.ErrorLevel))
	log.Error("ended by an error", zap.String("component", daemons[s.args[0]]), zap.String("error", text), zap.Int("exit_code", code))
}

// tellDropped logs a gap. It is an error so that no log_level leaves it out.
func (l *daemonLog) tellDropped(lines uint64) {
	l.Error("log lines were dropped: stderr was blocked or failed", zap.String("component", "log"),
		zap.Uint64("dropped", lines), zap.Uint64("dropped_since_start", l.dropped()))
}

// libraryLog receives lines that packages write to the standard library's log, such
// as net/http about a handler that panicked.
type libraryLog struct{ log *zap.Logger }

// Write implements io.Writer.
func (l libraryLog) Write(p []byte) (int, error) {
	l.log.Warn("a library reports", zap.String("component", "log"), zap.ByteString("said", bytes.TrimSpace(p)))
	return len(p), nil
}
