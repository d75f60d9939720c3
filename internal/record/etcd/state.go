package etcd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kazahana/kazahana/internal/record"
)

// header stands in front of a stored value.
type header struct {
	Writer string `json:"w"` // the version: drawn for each change
	AtMS   int64  `json:"a"` // Unix ms, by the writer's clock
	TermMS int64  `json:"t,omitempty"`
	KeepMS int64  `json:"k,omitempty"`
	// Latest is the latest AtMS of the record so far, where that is not AtMS: a host whose clock
	// is ahead may have written before.
	Latest int64 `json:"l,omitempty"`
	Grant  int64 `json:"g,omitempty"` // the longest GrantMS of the record so far
	Mark   int64 `json:"m,omitempty"`
	Tell   bool  `json:"n,omitempty"`
}

func (h header) latest() int64 { return max(h.AtMS, h.Latest) }

// vanishes reports whether nothing of the record is wanted after its term.
func (h header) vanishes() bool {
	return h.TermMS > 0 && h.KeepMS == 0 && h.Mark == 0
}

// marked reports whether a marker says that the record's term has not ended.
func (h header) marked() bool { return h.TermMS > 0 && !h.vanishes() }

// known is a record as it was last seen.
type known struct {
	header
	line      []byte // the header as it is stored, which names the version
	key       string
	value     []byte
	rev       int64            // mod revision of the record; 0: it is absent
	markerRev int64            // likewise of the marker
	lease     clientv3.LeaseID // of the term; 0: none
	// aliveAt is when this process last kept the lease alive, from before it asked for
	// that, on the clock that counts suspend; 0 where it did not.
	aliveAt time.Duration
	life    string // the name
	// mostMS is what etcd says is left of the lease; 0 where it was not asked.
	mostMS int64
}

// size is about how much the record takes in memory, besides its key.
func (k known) size() int { return len(k.value) + 256 }

func (k known) over() bool { return k.marked() && k.markerRev == 0 }

// runs reports whether the record has a term that has not ended.
func (k known) runs() bool { return k.TermMS > 0 && !k.over() }

// record returns the record that a rule is shown. The clocks of hosts tell how much of a term is
// left as far as they agree with etcd.
func (k known) record(nowMS int64) record.Record {
	r := record.Record{Value: bytes.Clone(k.value), Over: k.over()}
	if k.TermMS > 0 {
		r.EndMS = k.AtMS + k.TermMS
	}
	if k.runs() {
		r.LeftMS = min(r.EndMS-nowMS, k.TermMS)
		if k.mostMS > 0 {
			r.LeftMS = min(r.LeftMS, k.mostMS)
		}
		r.LeftMS = max(r.LeftMS, 1)
	}
	return r
}

// sight is a look at all that an ask names.
type sight struct {
	records []known // in the order of the ask
	floor   floor
	life    life
	timed   bool // every term that runs has its known.mostMS
}

type floor struct{ value, rev int64 }

func (s *Store) recordPath(key string) string { return s.prefix + "k/" + key }
func (s *Store) markerPath(key string) string { return s.prefix + "t/" + key }
func (s *Store) floorPath() string            { return s.prefix + "floor" }

// gets reads all that a sight holds.
func (s *Store) gets(ask record.Ask) []clientv3.Op {
	ops := []clientv3.Op{clientv3.OpGet(s.floorPath()), s.getLife()}
	for _, key := range ask.Keys {
		ops = append(ops, clientv3.OpGet(s.recordPath(key)), clientv3.OpGet(s.markerPath(key)))
	}
	return ops
}

// understand reads the answers to gets.
func (s *Store) understand(ask record.Ask, header *etcdserverpb.ResponseHeader, answers []*etcdserverpb.ResponseOp) (seen sight, err error) {
	if seen.life, err = s.lifeOf(header, answers[1].GetResponseRange().Kvs); err != nil {
		return sight{}, err
	}
	if kv := first(answers[0]); kv != nil {
		seen.floor.rev = kv.ModRevision
		if seen.floor.value, err = strconv.ParseInt(string(kv.Value), 10, 64); err != nil {
			return sight{}, s.damaged(kv.Key, err)
		}
	}
	answers = answers[2:]
	for _, key := range ask.Keys {
		k, err := s.parse(key, first(answers[0]), first(answers[1]))
		if err != nil {
			return sight{}, err
		}
		k.life = seen.life.name
		seen.records, answers = append(seen.records, k), answers[2:]
	}
	s.floor.Store(&seen.floor)
	s.life.Store(&seen.life)
	return seen, nil
}

func first(answer *etcdserverpb.ResponseOp) *mvccpb.KeyValue {
	if kvs := answer.GetResponseRange().Kvs; len(kvs) > 0 {
		return kvs[0]
	}
	return nil
}

// parse reads a record and its marker, each nil where there is none.
func (s *Store) parse(key string, kv, marker *mvccpb.KeyValue) (known, error) {
	k := known{key: key}
	if kv == nil {
		if marker != nil {
			return known{}, s.damaged(marker.Key, fmt.Errorf("its record is missing"))
		}
		return k, nil
	}
	text, value, ok := bytes.Cut(kv.Value, []byte("\n"))
	err := json.Unmarshal(text, &k.header)
	if err == nil && (!ok || k.Writer == "") {
		err = fmt.Errorf("it is no record: %.100q", kv.Value)
	}
	k.line, k.value, k.rev, k.lease = text, value, kv.ModRevision, clientv3.LeaseID(kv.Lease)
	if marker != nil {
		k.markerRev, k.lease = marker.ModRevision, clientv3.LeaseID(marker.Lease)
		if err == nil && k.markerRev != k.rev {
			err = fmt.Errorf("it and %s were not written together", marker.Key)
		}
	}
	if err != nil {
		return known{}, s.damaged(kv.Key, err)
	}
	return k, nil
}

func (s *Store) damaged(path []byte, err error) error {
	return fmt.Errorf("%s: %s is damaged: %w", s.conn.Config().Place(), path, err)
}

// encode is the header and the line in front of the value of a write.
func encode(w record.Write, nonce string, atMS int64, before known) (h header, line []byte, err error) {
	h = header{
		Writer: nonce, AtMS: atMS, TermMS: w.TermMS, KeepMS: w.KeepMS, Grant: max(w.GrantMS, before.Grant), Mark: w.Mark, Tell: w.Tell,
	}
	if latest := before.latest(); latest > atMS {
		h.Latest = latest
	}
	line, err = json.Marshal(h)
	return h, line, err
}

// afterLine is a byte that comes after that at the end of a line.
const afterLine = "\x0b"

// view returns the view of the sight that a rule is shown.
func (seen sight) view(nowMS int64) record.View {
	v := record.View{Records: map[string]record.Record{}, NowMS: nowMS, Floor: seen.floor.value}
	seen.life.show(&v)
	for _, k := range seen.records {
		if k.rev != 0 {
			v.Records[k.key] = k.record(nowMS)
		}
	}
	return v
}

// same compares with all that was seen. A record that is absent may have been there in
// between, and then the floor has risen. A record has the version that was seen if its value
// begins with the same line. Its revision does not say so: a cluster that was restored from a
// snapshot counts the same revisions once more.
func (s *Store) same(seen sight, floorToo bool) []clientv3.Cmp {
	all := []clientv3.Cmp{s.sameLife(seen.life)}
	for _, k := range seen.records {
		path := s.recordPath(k.key)
		if k.rev == 0 {
			floorToo = true
			all = append(all, clientv3.Compare(clientv3.ModRevision(path), "=", 0))
			continue
		}
		all = append(all, clientv3.Compare(clientv3.Value(path), ">", string(k.line)), clientv3.Compare(clientv3.Value(path), "<", string(k.line)+afterLine))
		if k.marked() {
			all = append(all, clientv3.Compare(clientv3.ModRevision(s.markerPath(k.key)), "=", k.markerRev))
		}
	}
	if floorToo {
		all = append(all, clientv3.Compare(clientv3.ModRevision(s.floorPath()), "=", seen.floor.rev))
	}
	return all
}
