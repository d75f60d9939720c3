// Command netrpc calls the daemon with net/rpc and the codec of github.com/ugorji/go, as
// docs/protocol.md says of it: it prints an ID, two IDs of one answer, and what the codec
// makes of an error and of the call after it.
package main

import (
	"fmt"
	"net"
	"net/rpc"
	"os"

	"github.com/ugorji/go/codec"
)

func main() {
	if err := run(os.Getenv("KAZAHANA_SOCKET")); err != nil {
		fmt.Fprintln(os.Stderr, "netrpc:", err)
		os.Exit(1)
	}
}

func run(socket string) error {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	client := rpc.NewClientWithCodec(codec.MsgpackSpecRpc.ClientCodec(conn, new(codec.MsgpackHandle)))
	defer client.Close()
	var id int64
	var ids []int64
	if err := client.Call("NextID", codec.MsgpackSpecRpcMultiArgs{}, &id); err != nil {
		return err
	}
	if err := client.Call("NextIDs", codec.MsgpackSpecRpcMultiArgs{2}, &ids); err != nil {
		return err
	}
	fmt.Println(id, ids)
	fmt.Println(client.Call("NextIDs", codec.MsgpackSpecRpcMultiArgs{0}, &ids))
	fmt.Println(client.Call("NextID", codec.MsgpackSpecRpcMultiArgs{}, &id))
	return nil
}
