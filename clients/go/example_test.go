//go:build go1.25

package kazahana_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	kazahana "github.com/kazahana/kazahana/clients/go"
	"github.com/kazahana/kazahana/clients/go/kazahanatest"
)

func ExampleClient_NextID() {
	client := kazahanatest.New().Client() // in a program: kazahana.New()
	defer client.Close()

	id, err := client.NextID(context.Background())
	if err != nil {
		panic(err)
	}
	fmt.Println(id)
	fmt.Println(id.Time(kazahana.DefaultLayout()).UTC())
	// Output:
	// 137465797017600256
	// 2027-01-15 08:00:00 +0000 UTC
}

func ExampleClient_NextIDs() {
	client := kazahanatest.New().Client()
	defer client.Close()

	ids, err := client.NextIDs(context.Background(), 3)
	if err != nil {
		panic(err)
	}
	text, _ := json.Marshal(ids)
	fmt.Println(string(text))
	// Output: ["137465797017600256","137465797017600257","137465797017600258"]
}

func ExampleClient_Lock() {
	client := kazahanatest.New().Client()
	defer client.Close()
	ctx := context.Background()

	lock, err := client.Lock(ctx, "reports/daily", kazahana.LockOptions{Wait: time.Second})
	if err != nil {
		panic(err)
	}
	defer lock.Release(ctx)

	select {
	case <-lock.Lost():
		fmt.Println(lock.Err()) // stop working
	default:
		fmt.Println("working with token", lock.Token())
	}
	// Output: working with token 1
}

func ExampleClient_NextSequence() {
	client := kazahanatest.New().Client()
	defer client.Close()

	for range 2 {
		number, err := client.NextSequence(context.Background(), "invoices/2026")
		if err != nil {
			panic(err)
		}
		fmt.Println(number)
	}
	// Output:
	// 1
	// 2
}

func ExampleClient_Bounds() {
	client := kazahanatest.New().Client()
	defer client.Close()

	day := time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC)
	smallest, largest, err := client.Bounds(context.Background(), day, day.AddDate(0, 0, 1))
	if err != nil {
		panic(err)
	}
	fmt.Printf("SELECT ... WHERE id BETWEEN %d AND %d\n", smallest, largest)
	// Output: SELECT ... WHERE id BETWEEN 117051280588800000 AND 117413668454399999
}

func ExampleLayout_Inspect() {
	in, err := kazahana.DefaultLayout().Inspect(117360159433646374)
	if err != nil {
		panic(err)
	}
	fmt.Println(in.Time.Format(time.RFC3339Nano), in.MachineID, in.Sequence, in.Fallback, in.External)
	// Output: 2026-11-20T20:27:22.455Z 4961 38 false SoAkz6KzylI
}

func ExampleExternalCodec() {
	codec, err := kazahana.NewExternalCodec("correct horse battery staple", "default")
	if err != nil {
		panic(err)
	}
	external := codec.Encode(1)
	id, err := codec.Decode(external)
	fmt.Println(external, id, err)
	// Output: v5WBMA-yRv4 1 <nil>
}

func ExampleCode() {
	fake := kazahanatest.New()
	client := fake.Client()
	defer client.Close()
	fake.Fail("NextID", 1, &kazahana.Error{
		Code: kazahana.ErrClockBackward, Message: "the clock is behind", Details: map[string]string{"backward_ms": "7000", "limit_ms": "5000"},
	})

	_, err := client.NextID(context.Background())
	var backward *kazahana.ClockBackwardError
	switch {
	case errors.As(err, &backward):
		fmt.Println("the clock went back by", backward.Backward)
	case errors.Is(err, kazahana.ErrNoProvider):
		fmt.Println("no provider")
	}
	// Output: the clock went back by 7s
}

func ExampleWithSingleAttempt() {
	client, err := kazahana.New(kazahana.WithSocket("/nonexistent/kazahanad.sock"), kazahana.WithSingleAttempt())
	if err != nil {
		panic(err)
	}
	defer client.Close()

	_, err = client.Status(context.Background()) // a probe, which is to be told at once
	fmt.Println(errors.Is(err, kazahana.ErrDaemonUnavailable))
	// Output: true
}

func ExampleClient_Call() {
	client := kazahanatest.New().Client()
	defer client.Close()

	var pong string
	err := client.Call(context.Background(), "Ping", &pong)
	fmt.Println(pong, err)
	// Output: pong <nil>
}

func ExampleID() {
	id, err := kazahana.ParseID("117360159433646374")
	if err != nil {
		panic(err)
	}
	text, _ := json.Marshal(map[string]kazahana.ID{"id": id})
	column, _ := id.Value() // as database/sql stores it

	var again kazahana.ID
	err = again.Scan(column)
	fmt.Printf("%s %T %v %v\n", text, column, again == id, err)
	// Output: {"id":"117360159433646374"} int64 true <nil>
}
