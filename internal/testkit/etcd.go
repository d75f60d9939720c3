package testkit

import (
	"os/exec"
	"strings"

	"github.com/kazahana/kazahana/internal/testkit/etcdtest"
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
	all, err := etcdtest.NewMembers(s.Path("etcd"), 3, "http")
	if err != nil {
		s.T.Fatal(err)
	}
	for _, one := range all {
		m := &EtcdMember{Client: one.Client, Args: one.Args}
		members = append(members, m)
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
