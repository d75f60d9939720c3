package main

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// script is a Neovim user's typing. Its findings go to a file, one line a finding.
const script = `
let out = []
try
  let ch = sockconnect('pipe', $KZTEST_SOCKET, {'rpc': v:true})
  let id = rpcrequest(ch, 'NextID')
  call add(out, type(id) == v:t_number ? 'number' : 'type ' . type(id))
  call add(out, printf('%d', id))
  call add(out, rpcrequest(ch, 'NextID', {'format': 'string'}))
  call rpcnotify(ch, 'NextID')
  call rpcnotify(ch, 'NoSuchNotification', 1, [2], {'three': 3})
  for next in rpcrequest(ch, 'NextIDs', 3)
    call add(out, printf('%d', next))
  endfor
  call add(out, rpcrequest(ch, 'Inspect', id).kind)
  try
    call rpcrequest(ch, 'NoSuchMethod', 1)
    call add(out, 'no error')
  catch
    call add(out, v:exception)
  endtry
  try
    call rpcrequest(ch, 'NextIDs', 0)
    call add(out, 'no error')
  catch
    call add(out, v:exception)
  endtry
  call add(out, rpcrequest(ch, 'Ping'))
catch
  call add(out, 'uncaught: ' . v:exception . ' at ' . v:throwpoint)
endtry
call writefile(out, $KZTEST_OUT)
qall!
`

// TestNeovim has an independent implementation of MessagePack-RPC for a client.
func TestNeovim(t *testing.T) {
	ring.All(t)
	nvim := ring.Program(t, "nvim")
	t.Parallel()
	s := newSite(t)
	s.Start()
	before := s.Dial().ID()
	testkit.WriteFile(t, s.Path("t.vim"), script)
	cmd := exec.Command(nvim, "--headless", "-u", "NONE", "-i", "NONE", "-n", "-S", s.Path("t.vim"))
	cmd.Env = s.Environment("KZTEST_SOCKET="+s.Socket, "KZTEST_OUT="+s.Path("out"))
	if got := testkit.RunCommand(t, cmd); got.Code != 0 {
		t.Fatalf("nvim ended with %+v", got)
	}
	content, err := os.ReadFile(s.Path("out"))
	if err != nil {
		t.Fatal(err)
	}
	found := strings.Split(strings.TrimSuffix(string(content), "\n"), "\n")
	if len(found) != 10 {
		t.Fatalf("Neovim found %q", found)
	}
	last := before
	for _, text := range found[1:6] {
		id, err := strconv.ParseInt(text, 10, 64)
		if err != nil || snowflake.ID(id) <= last {
			t.Errorf("Neovim got %q after %d (%v)", text, last, err)
		}
		last = snowflake.ID(id)
	}
	if after := s.Dial().ID(); after <= last {
		t.Errorf("Neovim's last ID is %d, and the next one is %d", last, after)
	}
	for i, want := range map[int]string{
		0: "number", 6: "regular", 9: "pong",
		7: `UNKNOWN_METHOD: there is no method "NoSuchMethod"; there are NextID, NextIDs`,
		8: "INVALID_PARAMS: a count of 0 is out of range: 1 to 65536",
	} {
		if !strings.Contains(found[i], want) {
			t.Errorf("Neovim found %q, want %q", found[i], want)
		}
	}
}
