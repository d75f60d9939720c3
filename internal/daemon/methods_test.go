package daemon

import (
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/wire"
)

var (
	timeline = snowflake.DefaultTimeline()
	plain    snowflake.Codec
)

// nth is the ID that a fresh rig gives as its n-th.
func nth(n int64) snowflake.ID { return timeline.ID(startMS, n) }

func TestNextID(t *testing.T) {
	p := newRig(t).start().dial()
	n := int64(0)
	want := func(got snowflake.ID, what string) {
		t.Helper()
		if got != nth(n) {
			t.Errorf("%s: %d, want %d", what, got, nth(n))
		}
		n++
	}
	for _, opts := range [][]any{
		{}, {nil}, {options{}}, {options{"service": "default"}}, {options{"service": []byte("default")}}, {options{"format": "int"}},
		{options{"timeout_ms": 0}}, {options{"timeout_ms": 5000.0}}, {patient()},
		{options{"regular_only": true}}, {options{"regular_only": false}},
		{options{"service": "default", "timeout_ms": uint8(7), "format": "int", "regular_only": true}},
		{map[any]any{string([]byte("format")): []byte("int")}},
	} {
		want(p.id(opts...), string(pack(opts))) // seeds 000-11.1-1 and 003-2-1
	}
	decimal, err := strconv.ParseInt(p.text("NextID", options{"format": "string"}), 10, 64)
	if err != nil {
		t.Error(err)
	}
	want(snowflake.ID(decimal), "format string")
	external, err := plain.Decode(p.text("NextID", options{"format": "external"}))
	if err != nil {
		t.Error(err)
	}
	want(external, "format external")
}

func TestNextIDs(t *testing.T) {
	p := newRig(t, wide).start().dial()
	n := int64(0)
	for _, count := range []int{1, 2, 3, 100, 5000} {
		for i, id := range p.ids(count) {
			if id != nth(n) {
				t.Fatalf("ID %d of %d is %d, want %d", i, count, id, nth(n))
			}
			n++
		}
	}
	for format, read := range map[string]func(string) (snowflake.ID, error){
		"string": func(s string) (snowflake.ID, error) {
			i, err := strconv.ParseInt(s, 10, 64)
			return snowflake.ID(i), err
		},
		"external": plain.Decode,
	} {
		var texts []string
		p.decode(p.result("NextIDs", 10.0, options{"format": format, "timeout_ms": 0, "regular_only": true, "service": "default"}), &texts)
		if len(texts) != 10 {
			t.Fatalf("%d IDs instead of 10", len(texts))
		}
		for _, text := range texts {
			if id, err := read(text); err != nil || id != nth(n) {
				t.Fatalf("%s: %q is %d, %v, want %d", format, text, id, err, nth(n))
			}
			n++
		}
	}
}

func TestInspect(t *testing.T) {
	p := newRig(t).start().dial()
	p.id()
	id := p.id()
	want := map[string]any{
		"id": uint64(id), "external": plain.Encode(id), "timestamp_ms": int64(startMS), "time": snowflake.FormatMS(startMS),
		"machine_id": int64(0), "sequence": int64(1), "kind": "regular", "bit_id": int64(14), "bit_seq": int64(8),
		"epoch_ms": snowflake.DefaultEpochMS,
	}
	for _, spelling := range []any{
		uint64(id), int64(id), strconv.FormatInt(int64(id), 10), []byte(strconv.FormatInt(int64(id), 10)),
		"0x" + strconv.FormatInt(int64(id), 16), plain.Encode(id),
	} {
		got := p.table("Inspect", spelling)
		if len(got) != len(want) {
			t.Fatalf("%v: keys %v", spelling, slices.Sorted(maps.Keys(got)))
		}
		for key, value := range want {
			if number, ok := value.(int64); ok {
				if g, err := asInt(got[key]); err != nil || g != number {
					t.Errorf("%v: %s is %v, want %v", spelling, key, got[key], value)
				}
			} else if got[key] != value {
				t.Errorf("%v: %s is %#v, want %#v", spelling, key, got[key], value)
			}
		}
	}
	fallback := timeline.ID(startMS, timeline.FallbackBit()|5<<8|7)
	got := p.table("Inspect", uint64(fallback), options{"service": "default"})
	machine, _ := asInt(got["machine_id"])
	if got["kind"] != "fallback" || machine != 5 { // seed 000-A.5-1
		t.Errorf("a fallback ID: %v", got)
	}
}

func asInt(v any) (int64, error) { return strconv.ParseInt(string(mustJSON(v)), 10, 64) }

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func TestBounds(t *testing.T) {
	p := newRig(t).start().dial()
	ids, err := idsOf(p.result("Bounds", startMS, startMS+1))
	if err != nil || len(ids) != 2 || ids[0] != timeline.ID(startMS, 0) || ids[1] != timeline.ID(startMS, timeline.MaxLow()) {
		t.Errorf("the bounds of a millisecond are %d, %v", ids, err)
	}
	if id := p.id(); id < ids[0] || id > ids[1] {
		t.Errorf("%d is outside", id)
	}
	// From before the epoch to after its end: cut to what there is.
	ids, err = idsOf(p.result("Bounds", int64(math.MinInt64), int64(math.MaxInt64), options{"service": "default"}))
	if err != nil || ids[0] != 0 || ids[1] != math.MaxInt64 {
		t.Errorf("the bounds of everything are %d, %v", ids, err)
	}
}

func TestExternal(t *testing.T) {
	const secret = "correct horse battery staple"
	keyed, err := snowflake.NewCodec([]byte(secret), "keyed")
	must.Succeed(t, err)
	p := newRig(t, func(s *setup) {
		s.services["keyed"] = settings()
		s.secrets["keyed"] = secret + "\n"
	}).start().dial()
	for service, codec := range map[string]snowflake.Codec{"default": plain, "keyed": keyed} {
		opts := options{"service": service}
		id := p.id(opts)
		external := p.text("ToExternal", uint64(id), opts)
		if external != codec.Encode(id) {
			t.Errorf("%s: %d is %s", service, id, external)
		}
		if again := p.text("ToExternal", external, opts); again != external {
			t.Errorf("%s: an external ID becomes %s", service, again)
		}
		for _, limit := range []options{opts, {"service": service, "latest_ms": startMS}, {"latest_ms": startMS + 0.0, "service": service}} {
			if back, err := idOf(p.result("ToInternal", external, limit)); err != nil || back != id { // seed 000-8.6-1
				t.Errorf("%s: %s is %d, %v", service, external, back, err)
			}
		}
		for _, latest := range []int64{startMS - 1, 0, -1, math.MinInt64} {
			p.fails(wire.CodeInvalidExternalID, "ToInternal", external, options{"service": service, "latest_ms": latest})
		}
		if got := p.text("NextID", options{"service": service, "format": "external"}); got == external {
			t.Errorf("%s: %s twice", service, got)
		} else if _, err := codec.Decode(got); err != nil {
			t.Errorf("%s: %v", service, err)
		}
		if got := p.table("Inspect", external, opts); got["external"] != external || got["id"] != uint64(id) {
			t.Errorf("%s: Inspect: %v", service, got)
		}
	}
	for _, bad := range []string{"", "short", "much too long a text", "!!!!!!!!!!!", "AAAAAAAAAA\n", "ASNFZ4mrze9"} {
		p.fails(wire.CodeInvalidExternalID, "ToInternal", bad)
	}
	for _, bad := range []string{"", "short", "!!!!!!!!!!!"} {
		p.fails(wire.CodeInvalidExternalID, "Inspect", bad)
		p.fails(wire.CodeInvalidExternalID, "ToExternal", bad)
	}
}

func TestStatus(t *testing.T) {
	r := newRig(t).start()
	p := r.dial()
	p.ids(5)
	got := p.table("Status")
	// The JSON of the command has the same keys, down to every level.
	var want map[string]any
	must.Succeed(t, json.Unmarshal(mustJSON(r.server.Status()), &want))
	sameKeys(t, "Status", got, want)
	features, _ := got["features"].([]any)
	if got["version"] != "v1.2.3" || got["scope"] != "unverified" || !slices.Equal(features, []any{"ids", "uuid"}) || got["mode"] != "regular" {
		t.Errorf("Status: %v", got)
	}
	for key, want := range map[string]int64{"requests_total": 1, "connections": 1, "in_flight": 0, "clock_ms": startMS, "clock_off_ms": 0} {
		if n, err := asInt(got[key]); err != nil || n != want {
			t.Errorf("%s is %v, want %d", key, got[key], want)
		}
	}
	services, _ := got["services"].([]any)
	if len(services) != 1 {
		t.Fatalf("services: %v", got["services"])
	}
	service := services[0].(map[string]any)
	if issued, _ := asInt(service["ids_issued"].(map[string]any)["regular"]); issued != 5 || service["service"] != "default" {
		t.Errorf("service: %v", service)
	}
	for _, forbidden := range []string{"secret", "Secret"} {
		if _, ok := service["leases"].([]any)[0].(map[string]any)[forbidden]; ok {
			t.Error("a lease shows its secret")
		}
	}
}

func sameKeys(t *testing.T, where string, got, want any) {
	t.Helper()
	switch want := want.(type) {
	case map[string]any:
		got, ok := got.(map[string]any)
		if !ok || !slices.Equal(slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want))) {
			t.Errorf("%s has the keys %v, want %v", where, slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
			return
		}
		for key := range want {
			sameKeys(t, where+"."+key, got[key], want[key])
		}
	case []any:
		got, ok := got.([]any)
		if !ok || len(got) != len(want) {
			t.Errorf("%s is %v, want %v", where, got, want)
			return
		}
		for i := range want {
			sameKeys(t, where+"[]", got[i], want[i])
		}
	}
}

func TestUUID(t *testing.T) {
	p := newRig(t).start().dial()
	seen := map[string]bool{}
	for _, test := range []struct {
		params []any
		want   uuid.Version
	}{{nil, 7}, {[]any{nil}, 7}, {[]any{7}, 7}, {[]any{4}, 4}, {[]any{4.0}, 4}, {[]any{uint64(7)}, 7}} { // seed 003-5-7
		for range 3 {
			text := p.text("UUID", test.params...)
			u, err := uuid.Parse(text)
			// Seed 003-2-1.
			if err != nil || u.Version() != test.want || u.Variant() != uuid.RFC4122 || u.String() != text || seen[text] {
				t.Errorf("UUID%v: %s, %v", test.params, text, err)
			}
			seen[text] = true
		}
	}
	// The configuration names the version for requests that name none.
	p4 := newRig(t, func(s *setup) { s.UUIDVersion = 4 }).start().dial()
	for _, test := range []struct {
		params []any
		want   uuid.Version
	}{{nil, 4}, {[]any{nil}, 4}, {[]any{7}, 7}} {
		// Seed 003-5-6.
		if u, err := uuid.Parse(p4.text("UUID", test.params...)); err != nil || u.Version() != test.want {
			t.Errorf("with uuid_version 4, UUID%v has version %d, %v", test.params, u.Version(), err)
		}
	}
	for _, version := range []any{0, 1, 5, 8, -7, 4.5, math.MaxUint32} {
		p.fails(wire.CodeInvalidParams, "UUID", version)
	}
}

// Every wrong request is answered as wrong, says how, and costs the peer
// nothing else.
func TestWrongRequests(t *testing.T) {
	r := newRig(t).start()
	p := r.dial()
	const params, service = wire.CodeInvalidParams, wire.CodeUnknownService
	list := func(values ...any) []any { return slice(values) }
	for _, test := range []struct {
		method any
		params any
		code   wire.Code
		text   string
	}{
		{"", list(), wire.CodeUnknownMethod, `there is no method ""; there are NextID, NextIDs, Inspect`},
		{"nextid", list(), wire.CodeUnknownMethod, `there is no method "nextid"`},

		{"NextID", options{}, params, "params must be an array, not a map"},
		{"NextID", list(3), params, "want a map of options, got an integer"},
		{"NextID", list(options{}, options{}), params, "too many parameters: got 2, want at most 1"},
		{"NextID", list(options{"sevice": "x"}), params, `there is no option "sevice"; there are service, timeout_ms, format, regular_only`},
		{"NextID", list(options{"service": "nobody"}), service, `there is no service "nobody"; there are default`},
		{"NextID", list(options{"service": 1}), params, `option "service": want a string, got an integer`},
		{"NextID", list(options{"timeout_ms": -1}), params, "timeout_ms of -1 is out of range: 0 to 3600000"},
		{"NextID", list(options{"timeout_ms": 3_600_001}), params, "out of range"},
		{"NextID", list(options{"format": "hex"}), params, `there is no format "hex"; there are int, string, external`},

		{"NextIDs", list(), params, "NextIDs needs a count"},
		{"NextIDs", list(options{}), params, "parameter 1: want an integer, got a map"},
		{"NextIDs", list(0), params, "a count of 0 is out of range: 1 to 65536"},
		{"NextIDs", list(65_537), params, "a count of 65537 is out of range"},
		{"NextIDs", list(1, options{}, nil), params, "too many parameters: got 3, want at most 2"},
		{"NextIDs", list(1, options{"count": 2}), params, `there is no option "count"`},
		{"NextIDs", list(1, options{"service": "nobody"}), service, `"nobody"`},

		{"Inspect", list(), params, "Inspect needs an ID"},
		{"Inspect", list(-1), params, "-1 is negative"},
		{"Inspect", list(uint64(1) << 63), params, "is no ID: its reserve bit is set"},
		{"Inspect", list("9223372036854775808"), params, "is no ID"},
		{"Inspect", list(1, options{"service": "nobody"}), service, `"nobody"`},
		{"Inspect", list(1, options{"format": "int"}), params, `there is no option "format"; there are service`},

		{"Bounds", list(), params, "Bounds needs from_ms and to_ms"},
		{"Bounds", list("now", 1), params, "parameter 1: want an integer, got a string"},
		{"Bounds", list(startMS, startMS), params, "is empty"},
		{"Bounds", list(0, 1), params, "holds no ID"},
		{"Bounds", list(startMS, startMS+1, options{"service": "nobody"}), service, `"nobody"`},

		{"ToExternal", list(), params, "ToExternal needs an ID"},
		{"ToExternal", list(1, options{"latest_ms": 1}), params, `there is no option "latest_ms"`},
		{"ToInternal", list(), params, "ToInternal needs an external ID"},
		{"ToInternal", list(1), params, "want a string, got an integer"},
		{"ToInternal", list("AAAAAAAAAAA", options{"latest_ms": "x"}), params, `option "latest_ms": want an integer`},
		{"ToInternal", list("AAAAAAAAAAA", options{"secret": "x"}), params, `there is no option "secret"; there are service, latest_ms`},
		{"ToInternal", list("AAAAAAAAAAA", options{"service": "nobody"}), service, `"nobody"`},

		{"Status", list(nil), params, "too many parameters: got 1, want at most 0"},
		{"Ping", list(1), params, "too many parameters"},
		{"UUID", list(5), params, "UUID version 5: there are 4 and 7"},
		{"UUID", list(7, nil), params, "too many parameters: got 2, want at most 1"},
	} {
		p.send(request(77, test.method, test.params))
		got := p.receive()
		if got.id != 77 || got.err == nil {
			t.Errorf("%v %v: %+v", test.method, test.params, got)
			continue
		}
		if got.err.Code != test.code || got.err.Kind != wire.WrongRequest || !strings.Contains(got.err.Error(), test.text) {
			t.Errorf("%v %v:\n got %d %q\nwant 1 %q with %q", test.method, test.params, got.err.Kind, got.err, test.code, test.text)
		}
		p.alive()
	}
	if id := p.id(); id != nth(0) {
		t.Errorf("wrong requests used up IDs: the first one is %d, not %d", id, nth(0))
	}
	if n := r.server.bounds.inFlight(); n != 0 {
		t.Errorf("%d requests are in flight", n)
	}
}

// What a peer sent is shown back to it cut off, however much it was.
func TestErrorsAreShort(t *testing.T) {
	p := newRig(t).start().dial()
	huge := make([]byte, wire.MaxMessage-100)
	for i := range huge {
		huge[i] = '0'
	}
	for _, ask := range [][]byte{
		request(1, huge, []any{}),
		request(1, "NextID", []any{options{string(huge): 1}}),
		request(1, "NextID", []any{options{"service": huge}}),
		request(1, "NextID", []any{options{"format": huge}}),
		request(1, "Inspect", []any{"1" + string(huge)}),
		request(1, "Inspect", []any{string(huge) + "9223372036854775808"}),
		request(1, "Inspect", []any{"x" + string(huge)}),
		request(1, "ToInternal", []any{huge}),
	} {
		p.send(ask)
		got := p.receive()
		if got.err == nil || got.err.Kind != wire.WrongRequest || len(got.err.Error()) > 600 {
			t.Errorf("%.30q: %.500v", ask, got.err)
		}
	}
	p.alive()
}
