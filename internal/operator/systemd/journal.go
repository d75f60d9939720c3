package systemd

import (
	"bytes"
	"cmp"

	"github.com/coreos/go-systemd/v22/journal"
	"go.uber.org/zap/buffer"
	"go.uber.org/zap/zapcore"
)

// LeadsToJournal reports whether stderr leads to the journal. A variable that cannot be read
// says nothing.
func LeadsToJournal() bool {
	is, _ := journal.StderrIsJournalStream()
	return is
}

// priorities are the prefixes that give the journal the level of a line (sd-daemon(3)).
var priorities = map[zapcore.Level]string{zapcore.DebugLevel: "<7>", zapcore.InfoLevel: "<6>", zapcore.WarnLevel: "<4>"}

// Priority is the prefix of a line; every other level is an error's.
func Priority(level zapcore.Level) string { return cmp.Or(priorities[level], "<3>") }

// JournalEncoder puts the priority of an entry before each of its lines, because the
// journal makes an entry of each line.
func JournalEncoder(e zapcore.Encoder) zapcore.Encoder { return journalEncoder{e} }

type journalEncoder struct{ zapcore.Encoder }

var journalBuffers = buffer.NewPool()

// Clone implements zapcore.Encoder.
func (e journalEncoder) Clone() zapcore.Encoder { return journalEncoder{e.Encoder.Clone()} }

// EncodeEntry implements zapcore.Encoder.
func (e journalEncoder) EncodeEntry(entry zapcore.Entry, fields []zapcore.Field) (*buffer.Buffer, error) {
	encoded, err := e.Encoder.EncodeEntry(entry, fields)
	if err != nil {
		return nil, err
	}
	defer encoded.Free()
	out := journalBuffers.Get()
	for line := range bytes.Lines(encoded.Bytes()) {
		out.AppendString(Priority(entry.Level))
		_, _ = out.Write(line) // never fails
	}
	return out, nil
}
