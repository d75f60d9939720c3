//go:build linux

package abuse

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
)

// onDoors are the attacks on memcached_listen and http_listen. The new connections of the
// innocent also ask for an ID at each of both.
var onDoors = []attack{
	{name: "memcached: idle connections", users: 4, quiet: true, begin: func(a *attacker) { a.keep(4000, a.memcached, untilEnd) }},
	{name: "memcached: half commands", users: 4, begin: func(a *attacker) { a.keep(1000, a.memcached, a.halfCommand) }},
	{name: "memcached: slow commands", users: 4, begin: func(a *attacker) { a.keep(500, a.memcached, a.slowly("get ")) }},
	{name: "memcached: IDs never read", users: 4, begin: func(a *attacker) { a.keep(500, a.memcached, a.commandsUnread) }},
	{name: "memcached: commands on end", users: 4, begin: func(a *attacker) { a.keep(16, a.memcached, a.pour(func(int) []byte { return manyCommands })) }},
	{name: "memcached: garbage", users: 2, begin: func(a *attacker) { a.keep(64, a.memcached, a.garbage) }},
	{name: "http: idle after an answer", users: 4, begin: func(a *attacker) { a.keep(4000, a.web, a.askAndIdle("/id")) }},
	{name: "http: slow heads", users: 4, begin: func(a *attacker) { a.keep(500, a.web, a.slowly("GET /id HTTP/1.1\r\nHost: localhost\r\nX: ")) }},
	{name: "http: IDs never read", users: 4, begin: func(a *attacker) { a.keep(300, a.web, a.unreadPages("/ids?n=65536", "")) }},
	{name: "http: requests on end", users: 4, begin: func(a *attacker) { a.keep(16, a.web, a.pourPages("/id", "")) }},
	{name: "http: connections that come and go", users: 4, begin: func(a *attacker) { a.keep(32, a.web, a.oneAnswer(page("/id", ""), false)) }},
	{name: "http: garbage", users: 2, begin: func(a *attacker) { a.keep(64, a.web, a.garbage) }},
}

// memcached and web dial the two doors from the attacker's own address.
func (a *attacker) memcached() (net.Conn, error) { return a.tcp(a.Target.Memcached) }
func (a *attacker) web() (net.Conn, error)       { return a.tcp(a.Target.HTTP) }

// manyCommands ask for IDs, many with each command.
var manyCommands = bytes.Repeat([]byte("get"+strings.Repeat(" id", 60)+"\r\n"), 50)

// halfCommand sends a command without its end.
func (a *attacker) halfCommand(conn net.Conn) {
	onlyThis(conn, []byte("get"+strings.Repeat(" id", 300)))
}

// commandsUnread asks again and again, and reads nothing.
func (a *attacker) commandsUnread(conn net.Conn) {
	a.ask(conn, func(int) []byte { return manyCommands })
}

// askDoors asks for an ID at both doors, on new connections.
func (i *innocent) askDoors(ctx context.Context) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", i.target.Memcached)
	if err != nil {
		return err
	}
	defer conn.Close()
	if end, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(end)
	}
	if _, err := io.WriteString(conn, "get id\r\n"); err != nil {
		return err
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err == nil && !strings.HasPrefix(answer, "VALUE id ") {
		err = fmt.Errorf("memcached_listen answers %q", answer)
	}
	if err != nil {
		return err
	}
	return i.get(ctx, once(), "http://"+i.target.HTTP+"/id")
}
