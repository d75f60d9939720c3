//go:build go1.25

package placement_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/kazahana/kazahana/clients/go/placement"
	"github.com/kazahana/kazahana/clients/go/placement/placementtest"
)

func ExamplePlacement_Register() {
	daemon := placementtest.New().Client() // in a program: placement.New()
	defer daemon.Close()
	client := placement.New(daemon)
	ctx := context.Background()

	registration, err := client.Register(ctx, placement.Executor{
		Kinds: []string{"room"},
		Activate: func(ctx context.Context, a *placement.Activation) (string, error) {
			fmt.Printf("%s opens, version %d, with %q\n", a.Identity, a.Version, a.Snapshot)
			return "mailbox-" + a.Identity, nil
		},
		Passivate: func(ctx context.Context, a *placement.Activation) ([]byte, error) {
			fmt.Println(a.Identity, "closes")
			return []byte("3 guests"), nil
		},
		Ended: func(a *placement.Activation) {
			fmt.Println(a.Identity, "is not ours any more")
		},
	})
	if err != nil {
		panic(err)
	}
	where, err := client.Resolve(ctx, "room", "lobby")
	if err != nil {
		panic(err)
	}
	fmt.Println("lobby is at", where.Authority, "and there", where.PID)
	if err := registration.Close(ctx); err != nil {
		panic(err)
	}
	// Output:
	// lobby opens, version 1, with ""
	// lobby is at fake:1 and there mailbox-lobby
	// lobby closes
}

func ExampleActivation_Check() {
	daemon := placementtest.New().Client() // in a program: placement.New()
	defer daemon.Close()
	client := placement.New(daemon)
	ctx := context.Background()

	rooms := make(chan *placement.Activation, 1)
	registration, err := client.Register(ctx, placement.Executor{
		Kinds: []string{"room"},
		Activate: func(_ context.Context, a *placement.Activation) (string, error) {
			rooms <- a
			return "", nil
		},
	})
	if err != nil {
		panic(err)
	}
	if _, err := client.Resolve(ctx, "room", "lobby"); err != nil {
		panic(err)
	}
	room := <-rooms
	fmt.Println(room.Check(ctx)) // before whatever only one process may do
	if err := registration.Close(ctx); err != nil {
		panic(err)
	}
	fmt.Println(errors.Is(room.Check(ctx), placement.ErrActivationEnded))
	// Output:
	// <nil>
	// true
}

func ExamplePlacement_Events() {
	daemon := placementtest.New().Client() // in a program: placement.New()
	defer daemon.Close()
	client := placement.New(daemon)
	ctx := context.Background()

	events, err := client.Events(ctx)
	if err != nil {
		panic(err)
	}
	registration, err := client.Register(ctx, placement.Executor{
		Kinds: []string{"room"}, Activate: func(context.Context, *placement.Activation) (string, error) { return "", nil },
	})
	if err != nil {
		panic(err)
	}
	if _, err := client.Resolve(ctx, "room", "lobby"); err != nil {
		panic(err)
	}
	if err := registration.Close(ctx); err != nil {
		panic(err)
	}
	for event, err := range events {
		if err != nil { // there may have been more: subscribe again, and look at the Snapshot
			panic(err)
		}
		fmt.Println(event.Event, event.Kind, event.Identity)
		if event.Event == "passivated" {
			break
		}
	}
	// Output:
	// activated room lobby
	// passivated room lobby
}
