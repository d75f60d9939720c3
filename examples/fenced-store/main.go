// Command fenced-store is a tiny store of values over HTTP that refuses clients with
// old fencing tokens.
//
//	GET /KEY    the value
//	PUT /KEY    the body becomes the value
//
// Both take the token of the lock from the header Fencing-Token. With -log each
// request is printed, with its writer from the header Writer.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
)

// maxValue bounds a stored value, in bytes.
const maxValue = 1 << 20

// store keeps each value together with the greatest token that was seen with it. A
// store on disk must write both in one transaction: a store that restarts with the
// values and without the tokens accepts old tokens again.
type store struct {
	check bool // compare tokens

	mu      sync.Mutex
	entries map[string]entry
	log     *json.Encoder // may be nil
}

// request is a line of the log, in the order of the decisions.
type request struct {
	Key      string `json:"key"`
	Token    int64  `json:"token"`
	Writer   string `json:"writer"`
	Put      bool   `json:"put"`
	Accepted bool   `json:"accepted"`
}

type entry struct {
	value []byte
	token int64
}

func (s *store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	token, err := strconv.ParseInt(r.Header.Get("Fencing-Token"), 10, 64)
	if err != nil && s.check {
		http.Error(w, "the header Fencing-Token must be the token of your lock", http.StatusBadRequest)
		return
	}
	switch r.Method {
	case http.MethodGet:
		value, err := s.use(r, token, nil)
		answer(w, value, err)
	case http.MethodPut:
		value, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxValue))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		_, err = s.use(r, token, value)
		answer(w, nil, err)
	default:
		http.Error(w, "there are GET and PUT", http.StatusMethodNotAllowed)
	}
}

func answer(w http.ResponseWriter, value []byte, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	_, _ = w.Write(value)
}

// use returns the value, or replaces it if value is not nil. Comparing the token and
// writing are one step. Reading counts too: a value that the present holder has read
// must not be changed by an older one.
func (s *store) use(r *http.Request, token int64, value []byte) ([]byte, error) {
	key := r.URL.Path
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[key]
	refused := s.check && token < e.token
	if s.log != nil {
		_ = s.log.Encode(request{key, token, r.Header.Get("Writer"), value != nil, !refused})
	}
	if refused {
		return nil, fmt.Errorf("the fencing token %d is old: another client came with %d", token, e.token)
	}
	e.token = max(e.token, token)
	if value != nil {
		e.value = value
	}
	s.entries[key] = e
	return e.value, nil
}

func main() {
	listen := flag.String("listen", "127.0.0.1:7070", "address to listen on")
	check := flag.Bool("check", true, "refuse old fencing tokens; without, updates get lost")
	logged := flag.Bool("log", false, "print every request, a line of JSON each")
	flag.Parse()
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("http://%s\n", listener.Addr())
	s := &store{check: *check, entries: map[string]entry{}}
	if *logged {
		s.log = json.NewEncoder(os.Stdout)
	}
	log.Fatal(http.Serve(listener, s))
}
