package wire

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kazahana/kazahana/internal/testkit/ring"
)

func TestErrorText(t *testing.T) {
	cases := []struct {
		err  *Error
		text string
	}{
		{Errorf(CodeClockBackward, "the clock is behind the last ID").With("backward_ms", 7000).With("limit_ms", 5000),
			"CLOCK_BACKWARD: the clock is behind the last ID backward_ms=7000 limit_ms=5000"},
		{Errorf(CodeNoProvider, "there is none"), "NO_PROVIDER: there is none"},
		{Errorf(CodeLeaseAcquisition, "no lease").With("cause", "connection refused"),
			`LEASE_ACQUISITION: no lease cause="connection refused"`},
		{Errorf(CodeTimeout, "").With("cause", "clock"), "TIMEOUT: cause=clock"},
		{Errorf(CodeTimeout, "x").With("a", "").With("b", `q"`).With("c", "1=2").With("d", "é").With("e", "l\nf").With("f", `\`),
			`TIMEOUT: x a="" b="q\"" c="1=2" d=é e="l\nf" f=\`},
		{&Error{Message: "plain"}, "plain"},
	}
	for _, c := range cases {
		if got := c.err.Error(); got != c.text {
			t.Errorf("got  %s\nwant %s", got, c.text)
		}
		if got := ParseErrorText(c.err.Kind, c.text); !reflect.DeepEqual(got, c.err) {
			t.Errorf("%s: parsed as %#v", c.text, got)
		}
	}
}

func TestErrorTextOfOthers(t *testing.T) {
	for text, want := range map[string]Error{
		"":                            {},
		"E492: Not an editor command": {Code: "E492", Message: "Not an editor command"},
		"Invalid method: foo":         {Message: "Invalid method: foo"},
		"FOO:bar":                     {Message: "FOO:bar"},
		"FOO:":                        {Code: "FOO"},
		"FOO: a=1 then b=2":           {Code: "FOO", Message: "a=1 then", Details: []Detail{{"b", "2"}}},
		"FOO: x a=1 B=2":              {Code: "FOO", Message: "x a=1 B=2"},
		"FOO: x a= b=2":               {Code: "FOO", Message: "x a=", Details: []Detail{{"b", "2"}}},
		`FOO: x a="1" b="2`:           {Code: "FOO", Message: `x a="1" b="2`},
		`FOO: x a="1"2 b=3`:           {Code: "FOO", Message: `x a="1"2`, Details: []Detail{{"b", "3"}}},
		"FOO: x a=b=c":                {Code: "FOO", Message: "x", Details: []Detail{{"a", "b=c"}}},
	} {
		if got := ParseErrorText(Failed, text); !reflect.DeepEqual(*got, want) {
			t.Errorf("%q: got %#v", text, *got)
		}
	}
}

func TestErrorMessagesStayOneLineAndApart(t *testing.T) {
	for message, want := range map[string]string{
		"two\nlines\x00":        "INVALID_PARAMS: two lines k=v",
		"bad \xff byte":         "INVALID_PARAMS: bad \uFFFD byte k=v",
		"unknown option a=1":    "INVALID_PARAMS: unknown option a= 1 k=v",
		"a=1 is fine here":      "INVALID_PARAMS: a=1 is fine here k=v",
		`an open a="x`:          `INVALID_PARAMS: an open a= "x k=v`,
		"  spaces around them ": "INVALID_PARAMS: spaces around them k=v",
	} {
		got := Errorf(CodeInvalidParams, "%s", message).With("k", "v").Error()
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if e := ParseErrorText(WrongRequest, got); len(e.Details) != 1 {
			t.Errorf("%q: details %v", got, e.Details)
		}
	}
}

func TestErrorRoundTrip(t *testing.T) {
	codes := rapid.SampledFrom([]Code{CodeClockBackward, CodeTimeout, CodeInvalidParams, "E1", "A_B"})
	// Few letters, so that quotes, equals signs and spaces meet often.
	tricky := rapid.OneOf(rapid.String(), rapid.StringMatching(`[a= "\\\n]{0,12}`))
	rapid.Check(t, func(t *rapid.T) {
		e := Errorf(codes.Draw(t, "code"), "%s", tricky.Draw(t, "message"))
		for range rapid.IntRange(0, 3).Draw(t, "details") {
			e.With(rapid.StringMatching(`[a-z][a-z0-9_]{0,5}`).Draw(t, "key"), tricky.Draw(t, "value"))
		}
		text := e.Error()
		got := ParseErrorText(e.Kind, text)
		if got.Code != e.Code || !reflect.DeepEqual(got.Details, e.Details) {
			t.Fatalf("%q: got %#v, want %#v", text, got, e)
		}
		if again := got.Error(); again != text {
			t.Fatalf("%q became %q", text, again)
		}
		if strings.ContainsAny(text, "\n\r\x00") {
			t.Fatalf("more than a line: %q", text)
		}
	})
}

func TestErrorKinds(t *testing.T) {
	for _, c := range []Code{CodeUnknownService, CodeUnknownMethod, CodeInvalidParams, CodeInvalidExternalID, CodeParseError} {
		if Errorf(c, "x").Kind != WrongRequest {
			t.Errorf("%s: the request was not wrong?", c)
		}
	}
	for _, c := range []Code{CodeClockBackward, CodeLeaseAcquisition, CodeNoProvider, CodeTimeout, CodeTimestampOverflow,
		CodePermissionDenied, CodeOverloaded, CodeShuttingDown} {
		if Errorf(c, "x").Kind != Failed {
			t.Errorf("%s: was the request wrong?", c)
		}
	}
}

func TestErrorIsAndDetail(t *testing.T) {
	err := fmt.Errorf("call: %w", Errorf(CodeTimeout, "x").With("cause", "clock"))
	if !errors.Is(err, &Error{Code: CodeTimeout}) || errors.Is(err, &Error{Code: CodeOverloaded}) || errors.Is(err, errDeadline) {
		t.Error("errors.Is")
	}
	var e *Error
	if !errors.As(err, &e) {
		t.Fatal("errors.As")
	}
	if v, ok := e.Detail("cause"); v != "clock" || !ok {
		t.Error("Detail", v, ok)
	}
	if _, ok := e.Detail("nope"); ok {
		t.Error("a detail that is not there")
	}
	defer func() {
		if recover() == nil {
			t.Error("a bad key was taken")
		}
	}()
	e.With("Bad key", 1)
}

// A text of a megabyte must not take longer than its length warrants.
func TestErrorTextIsParsedInLinearTime(t *testing.T) {
	ring.WithoutRace(t)
	for _, word := range []string{"a=b ", `a=" `, `a="b" `, "a", "a=b B "} {
		text := "X: " + strings.Repeat(word, 1<<20/len(word)) + "!"
		ParseErrorText(Failed, text)
	}
}

func TestExcerpt(t *testing.T) {
	if got := Excerpt([]byte("a\n")); got != `"a\n"` {
		t.Error(got)
	}
	if got := Excerpt(make([]byte, 1<<20)); len(got) > 300 || !strings.HasSuffix(got, `"...`) {
		t.Error(len(got))
	}
}
