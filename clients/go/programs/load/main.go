// Command load asks for IDs until a file is there. It prints a dot for every 100 IDs, then
// how many there were, and the longest pause in ms.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	kazahana "github.com/kazahana/kazahana/clients/go"
)

// patience is how long a call may take while the daemon restarts.
const patience = 2 * time.Minute

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: load FILE")
		os.Exit(2)
	}
	if err := load(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
}

func load(end string) error {
	client, err := kazahana.New(kazahana.WithTimeout(patience))
	if err != nil {
		return err
	}
	defer client.Close()
	count, last, longest := 0, kazahana.ID(0), time.Duration(0)
	for {
		if _, err := os.Stat(end); err == nil {
			fmt.Println(count, longest.Milliseconds())
			return nil
		}
		began := time.Now()
		id, err := client.NextID(context.Background())
		if err != nil {
			return err
		}
		if id <= last {
			return fmt.Errorf("%d after %d", id, last)
		}
		count, last, longest = count+1, id, max(longest, time.Since(began))
		if count%100 == 0 {
			fmt.Print(".")
		}
	}
}
