package testkit

import (
	"fmt"
	"os/exec"
	"strings"

	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// EtcdMember is one of the servers of a cluster. It keeps its data.
type EtcdMember struct {
	*Instance
	Client string // host:port
	Args   []string
}

func (s *Site) RunEtcd(m *EtcdMember) {
	s.T.Helper()
	cmd := exec.Command(ring.Program(s.T, "etcd"), m.Args...)
	cmd.Env = s.Environment()
	m.Instance = s.LaunchCommand(cmd)
}

func (s *Site) StartEtcd() (members []*EtcdMember) {
	s.T.Helper()
	var initial []string
	for i := range 3 {
		name, peer := fmt.Sprintf("m%d", i), fmt.Sprintf("http://127.0.0.1:%d", FreePort(s.T))
		m := &EtcdMember{Client: fmt.Sprintf("127.0.0.1:%d", FreePort(s.T))}
		m.Args = []string{
			"--name", name, "--data-dir", s.Path(name), "--unsafe-no-fsync", "--logger", "zap", "--log-level", "error",
			"--listen-client-urls", "http://" + m.Client, "--advertise-client-urls", "http://" + m.Client,
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--heartbeat-interval", "50", "--election-timeout", "500",
		}
		initial = append(initial, name+"="+peer)
		members = append(members, m)
	}
	for _, m := range members {
		m.Args = append(m.Args, "--initial-cluster", strings.Join(initial, ","))
		s.RunEtcd(m)
	}
	return members
}

// EtcdURL names the members.
func (s *Site) EtcdURL(members []*EtcdMember) string {
	var clients []string
	for _, m := range members {
		clients = append(clients, m.Client)
	}
	return "etcd://" + strings.Join(clients, ",")
}
