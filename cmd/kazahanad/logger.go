package main

import (
	"fmt"
	"os"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/term"

	"github.com/kazahana/kazahana/internal/config"
)

// newLogger logs to stderr: for people on a terminal, as JSON elsewhere.
func newLogger(settings *config.Serve, s *system) (*zap.Logger, error) {
	level, err := zap.ParseAtomicLevel(string(settings.LogLevel))
	if err != nil {
		return nil, fmt.Errorf("log_level: %w", err)
	}
	s.level = level
	f, isFile := s.err.(*os.File)
	terminal := isFile && term.IsTerminal(int(f.Fd()))
	var encoder zapcore.Encoder
	if settings.LogFormat.Resolve(terminal) == config.LogConsole {
		c := zap.NewDevelopmentEncoderConfig()
		c.EncodeTime = zapcore.TimeEncoderOfLayout("15:04:05.000")
		c.EncodeLevel = zapcore.CapitalColorLevelEncoder
		if !terminal {
			c.EncodeLevel = zapcore.CapitalLevelEncoder
		}
		encoder = zapcore.NewConsoleEncoder(c)
	} else {
		c := zap.NewProductionEncoderConfig()
		c.EncodeTime = zapcore.RFC3339NanoTimeEncoder
		c.EncodeDuration = zapcore.StringDurationEncoder
		encoder = zapcore.NewJSONEncoder(c)
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(s.err)), level)), nil
}
