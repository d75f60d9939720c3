package unixsock

import "testing"

func TestUnmappedUsers(t *testing.T) {
	for _, test := range []struct {
		name, mapped, overflow string
		id                     uint32
		want                   bool
	}{
		{"the first namespace", "         0          0 4294967295\n", "65534\n", 65534, false},
		{"one user: itself", "0 1000 1\n", "65534\n", 0, false},
		{"one user: another", "0 1000 1\n", "65534\n", 65534, true},
		{"its own nobody may be another", "0 100000 65536\n", "65534\n", 65534, true},
		{"another number", "0 100000 65536\n", "99\n", 99, true},
		{"another number: nobody", "0 100000 65536\n", "99\n", 65534, false},
		{"all in two parts", "0 0 1000\n1000 1000 4294966295\n", "65534\n", 65534, false},
		{"no /proc", "", "", 65534, true},
		{"no /proc: a user", "", "", 1000, false},
	} {
		if got := parseNamespace(test.mapped, test.overflow).unmapped(test.id); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
}
