package load

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

// text answers of the two dialects that are not MessagePack.

func integer(n int64) string { return fmt.Sprintf(":%d\r\n", n) }

func values(ids ...int64) string {
	var b strings.Builder
	for _, id := range ids {
		digits := fmt.Sprint(id)
		fmt.Fprintf(&b, "VALUE id 0 %d\r\n%s\r\n", len(digits), digits)
	}
	return b.String() + "END\r\n"
}

func TestTextRequests(t *testing.T) {
	for _, c := range []struct {
		dialect string
		count   int
		want    string
	}{
		{Redis, 1, "*2\r\n$4\r\nINCR\r\n$2\r\nid\r\n"},
		{Redis, 100, "*3\r\n$6\r\nINCRBY\r\n$2\r\nid\r\n$3\r\n100\r\n"},
		{Memcached, 1, "GET id\r\n"},
		{Memcached, 3, "GET id id id\r\n"},
	} {
		d, err := newDialect(c.dialect, c.count)
		must.Succeed(t, err)
		if got := string(d.appendRequest([]byte("before"), 1)); got != "before"+c.want {
			t.Errorf("%s, %d: %q, want %q", c.dialect, c.count, got, c.want)
		}
	}
	if _, err := newDialect("french", 1); err == nil {
		t.Error("a dialect that does not exist was made")
	}
}

// TestTextAnswersInPieces: a piece of an answer is waited for, and changes
// nothing.
func TestTextAnswersInPieces(t *testing.T) {
	for _, c := range []struct {
		dialect string
		count   int
		answers []string
	}{
		{Redis, 1, []string{integer(9), integer(10), integer(1<<63 - 1)}},
		{Redis, 100, []string{integer(100), integer(200), integer(1200)}},
		{Memcached, 1, []string{values(9), values(1 << 40), values(1<<63 - 1)}},
		{Memcached, 3, []string{values(7, 8, 9), values(10, 11, 1200)}},
	} {
		d, err := newDialect(c.dialect, c.count)
		must.Succeed(t, err)
		for _, answer := range c.answers {
			for cut := range len(answer) {
				if n, err := d.take([]byte(answer[:cut]), 1); n != 0 || err != nil {
					t.Fatalf("%s: %q was taken as an answer of %d (%v)", c.dialect, answer[:cut], n, err)
				}
			}
			stream := answer
			if c.count == 1 {
				stream += answer[:2]
			}
			if n, err := d.take([]byte(stream), 1); n != len(answer) || err != nil {
				t.Fatalf("%s: %q has %d bytes, not %d (%v)", c.dialect, answer, len(answer), n, err)
			}
		}
	}
}

func TestWrongTextAnswers(t *testing.T) {
	for _, c := range []struct {
		dialect string
		count   int
		answers []string // all but the last are right
		want    string
	}{
		{Redis, 1, []string{"-ERR value is not an integer\r\n"}, "ERR value is not an integer"},
		{Redis, 1, []string{"+OK\r\n"}, "OK"},
		{Redis, 1, []string{":\r\n"}, "something else than an integer"},
		{Redis, 1, []string{":-5\r\n"}, "something else than an integer"},
		{Redis, 1, []string{":12x\r\n"}, "something else than an integer"},
		{Redis, 1, []string{":12\rx"}, "something else than an integer"},
		{Redis, 1, []string{":9223372036854775808\r\n"}, "something else than an integer"},
		{Redis, 1, []string{integer(0)}, "1 or more"},
		{Redis, 1, []string{integer(7), integer(7)}, "8 or more"},
		{Redis, 100, []string{integer(99)}, "100 or more"},
		{Redis, 100, []string{integer(500), integer(599)}, "600 or more"},
		{Redis, 1, []string{strings.Repeat("x", 200)}, "something else than what was asked for"},
		{Memcached, 1, []string{"ERROR\r\n"}, "ERROR"},
		{Memcached, 1, []string{"END\r\n"}, "END"},
		{Memcached, 1, []string{"VALUE other 0 1\r\n1\r\nEND\r\n"}, "VALUE other"},
		{Memcached, 1, []string{"VALUE id 0 2\r\n123\r\nEND\r\n"}, "not 2 digits"},
		{Memcached, 1, []string{"VALUE id 0 2\r\nab\r\nEND\r\n"}, "not 2 digits"},
		{Memcached, 1, []string{"VALUE id 0 x\r\nab\r\nEND\r\n"}, "VALUE id 0 x"},
		{Memcached, 1, []string{values(7, 8)}, "VALUE id"},
		{Memcached, 1, []string{values(7), values(7)}, "not above"},
		{Memcached, 3, []string{values(7, 8)}, "END"},
		{Memcached, 3, []string{values(7, 9, 9)}, "3 of 3"},
		{Memcached, 3, []string{values(7, 8, 9), values(9, 10, 11)}, "1 of 3"},
	} {
		d, err := newDialect(c.dialect, c.count)
		must.Succeed(t, err)
		last := len(c.answers) - 1
		for _, answer := range c.answers[:last] {
			if n, err := d.take([]byte(answer), 1); n != len(answer) || err != nil {
				t.Fatalf("%q: %d, %v", answer, n, err)
			}
		}
		if _, err := d.take([]byte(c.answers[last]), 1); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, %q: error is %v, want one with %q", c.dialect, c.answers, err, c.want)
		}
	}
}
