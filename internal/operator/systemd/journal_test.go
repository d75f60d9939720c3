package systemd

import (
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Each line of an entry has the priority of its level, in either format.
func TestJournalEncoder(t *testing.T) {
	for level, want := range map[zapcore.Level]string{
		zap.DebugLevel: "<7>", zap.InfoLevel: "<6>", zap.WarnLevel: "<4>", zap.ErrorLevel: "<3>", zap.DPanicLevel: "<3>",
	} {
		for _, encoder := range []zapcore.Encoder{
			zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.NewConsoleEncoder(zap.NewDevelopmentEncoderConfig()),
		} {
			said, err := JournalEncoder(encoder).Clone().EncodeEntry(zapcore.Entry{Level: level, Message: "it", Stack: "first\nsecond"}, nil)
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(said.String()) {
				if !strings.HasPrefix(line, want) {
					t.Errorf("%v: %q", level, line)
				}
			}
		}
	}
}
