package record_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/record"
)

func refused(t *testing.T, err error, words string) {
	t.Helper()
	if !errors.Is(err, record.ErrInvalid) || !strings.Contains(err.Error(), words) {
		t.Errorf("the error is %v, want ErrInvalid with %q", err, words)
	}
}

func TestLimits(t *testing.T) {
	ask := record.Ask{Keys: []string{"a"}}
	long := strings.Repeat("x", record.MaxKey+1)
	var many []string
	for i := range record.MaxKeys + 1 {
		many = append(many, fmt.Sprint("k", i))
	}
	for words, bad := range map[string]record.Ask{
		"key \"\"":        {Keys: []string{""}},
		"1 to 1024 bytes": {Keys: []string{long}},
		"asked for twice": {Keys: []string{"a", "a"}},
		"NUL at byte 1":   {Keys: []string{"a\x00"}},
		"of UTF-8":        {Keys: []string{"a\xff"}},
		"more than 32":    {Keys: many},
	} {
		refused(t, bad.Validate(), words)
	}
	for words, bad := range map[string][]record.Write{
		"not asked for":      {{Key: "b"}},
		"writes \"a\" twice": {{Key: "a"}, {Key: "a"}},
		"more than 1048576":  {{Key: "a", Value: make([]byte, record.MaxValue+1)}},
		"a term of -1 ms":    {{Key: "a", Value: []byte("2"), TermMS: -1}},
		"kept -1 ms":         {{Key: "a", Value: []byte("2"), KeepMS: -1}},
		"the mark -1":        {{Key: "a", Value: []byte("2"), Mark: -1}},
		"nor the times":      {{Key: "a", Value: []byte("2"), TermMS: record.MaxTermMS + 1}},
		"deletion of \"a\"":  {{Key: "a", TermMS: 1}},
		"a term or a grant":  {{Key: "a", GrantMS: 1}},
		"a grant of -1 ms":   {{Key: "a", Value: []byte("2"), GrantMS: -1}},
		"than 34560000000":   {{Key: "a", Value: []byte("2"), GrantMS: record.MaxTermMS + 1}},
	} {
		_, err := record.Area{}.Checked(ask, func(record.View) ([]record.Write, error) { return bad, nil })(record.View{})
		refused(t, err, words)
	}
	for _, bad := range []struct {
		prefix, after string
		limit         int
	}{{"", "", 1}, {"a", "", 0}, {"a", "", record.MaxPage + 1}, {"a", "\x00", 1}} {
		refused(t, record.ValidatePage(bad.prefix, bad.after, bad.limit), "")
	}
}
