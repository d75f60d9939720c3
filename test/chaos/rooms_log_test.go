package chaos

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

// roomRecord is all that was logged while rooms of examples/chat-rooms were used
// and their daemons killed, stopped and frozen. Times are of the clock that all
// processes of the machine share, in nanoseconds.
type roomRecord struct {
	activations []roomActivation
	store       []storeRequest // in the order in which the store decided
	messages    []roomMessage
	kept        [][]string // what the store has in the end, by room
	away        []roomAway
	faults      []string
	soon        bool // a process is told within 2/3 of a term that its daemon is gone
}

// roomHostNumber is an index into the hosts; noHost is none of them.
type roomHostNumber int8

const noHost roomHostNumber = -1

// roomActivation is an activation as its process logged it.
type roomActivation struct {
	host           roomHostNumber
	writer         string // the address of the process
	room           string
	version, token int64
	begun          int64
	ended          int64 // 0: it has not
	told           bool  // the daemon asked for the end, and waited for it
	relied         []int64
}

// storeRequest is a request that the store of messages has logged.
type storeRequest struct {
	Key      string
	Token    int64
	Writer   string
	Put      bool
	Accepted bool
}

// roomMessage is a message that was sent to a room.
type roomMessage struct {
	room           int
	text           string
	sent, answered int64
	ok             bool // it was appended, for certain
}

// roomAway is a time in which a host's daemon was dead or frozen.
type roomAway struct {
	host        roomHostNumber
	from, until int64
	frozen      bool
}

// roomLine is what a process of examples/chat-rooms prints.
type roomLine struct {
	At, Relied     int64
	Did            string
	Room           string
	Version, Token int64
	Address        string
}

// readLines decodes a file of JSON lines.
func readLines[T any](t *testing.T, path string, from io.Reader) (all []T) {
	t.Helper()
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		if !strings.HasPrefix(lines.Text(), "{") {
			continue
		}
		var one T
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			t.Fatalf("%s has the line %q: %v", path, lines.Text(), err)
		}
		all = append(all, one)
	}
	must.Succeed(t, lines.Err())
	return all
}

func readFile[T any](t *testing.T, path string) []T {
	t.Helper()
	file, err := os.Open(path)
	must.Succeed(t, err)
	defer file.Close()
	return readLines[T](t, path, file)
}

// activationsOf puts a process's lines together.
func activationsOf(host roomHostNumber, lines []roomLine) (all []roomActivation, err error) {
	type key struct {
		room  string
		token int64
	}
	writer, known := "", map[key]int{}
	for _, l := range lines {
		at, there := known[key{l.Room, l.Token}]
		switch l.Did {
		case "ready":
			writer = l.Address
		case "activated":
			if there {
				return nil, fmt.Errorf("it activated %s twice under token %d", l.Room, l.Token)
			}
			known[key{l.Room, l.Token}] = len(all)
			all = append(all, roomActivation{host: host, room: l.Room, version: l.Version, token: l.Token, begun: l.At})
		case "passivated", "ended", "wrote":
			if !there || all[at].ended != 0 {
				return nil, fmt.Errorf("%s %s under token %d, which is not activated there", l.Did, l.Room, l.Token)
			}
			if l.Did == "wrote" {
				all[at].relied = append(all[at].relied, l.Relied)
			} else {
				all[at].ended, all[at].told = l.At, l.Did == "passivated"
			}
		}
	}
	for i := range all {
		all[i].writer = writer
	}
	return all, nil
}
