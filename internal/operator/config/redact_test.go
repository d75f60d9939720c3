package config

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestRedact(t *testing.T) {
	for _, c := range [][2]string{
		// No secret, no change.
		{"", ""}, {"5s", "5s"}, {"none:", "none:"}, {"static:7?bits=3", "static:7?bits=3"},
		{"sqlite:/var/lib/kazahana/leases.db", "sqlite:/var/lib/kazahana/leases.db"},
		{"sqlite:/data/a@b/leases.db?ids=1-2", "sqlite:/data/a@b/leases.db?ids=1-2"},
		{"/srv/a@b", "/srv/a@b"}, {"cached+random", "cached+random"}, {"2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"},
		{"redis://h:6379/0?prefix=x&term=5m", "redis://h:6379/0?prefix=x&term=5m"},
		{"redis+sentinel://h1:26379,h2:26379/master/0", "redis+sentinel://h1:26379,h2:26379/master/0"},
		{"etcd://[::1]:2379,[fe80::1%25eth0]:2379/?ca_file=/ca", "etcd://[::1]:2379,[fe80::1%25eth0]:2379/?ca_file=/ca"},
		{"https://h1,https://h2:7464/path", "https://h1,https://h2:7464/path"},
		{"redis+unix:/run/redis.sock", "redis+unix:/run/redis.sock"},
		{"unix:///run/x.sock", "unix:///run/x.sock"},
		{"127.0.0.1:9746", "127.0.0.1:9746"},
		// Userinfo.
		{"redis://user:hunter2@h:6379/0", "redis://user:xxxxx@h:6379/0"},
		{"redis://:hunter2@h", "redis://:xxxxx@h"},
		{"redis://hunter2@h", "redis://xxxxx@h"},
		{"https://hunter2:@h", "https://xxxxx@h"},
		{"REDIS://user:hunter2@h", "REDIS://user:xxxxx@h"},
		{"user:hunter2@h:6379", "user:xxxxx@h:6379"},
		{"redis:user:hunter2@h", "redis:xxxxx@h"},
		{"redis:/user:hunter2@h", "redis:xxxxx@h"},
		{"//user:hunter2@h", "//user:xxxxx@h"},
		{"redis://user:hun@ter2/x?y@h", "redis://user:xxxxx@xxxxx"},
		{"redis://u:hunter2@h/0?username=a@b&prefix=p", "redis://u:xxxxx@xxxxx&prefix=p"}, // the price of doubt
		{"redis://user:hunter2", "redis://user:xxxxx"},
		{"redis://user:hunter2,h2:1", "redis://user:xxxxx"},
		{"http://a:hunter2@h1,http://b:hunter2@h2", "http://a:xxxxx@h2"},
		{"redis://us%zzer:hunter2%zz@h", "redis://us%zzer:xxxxx@h"},
		{"redis://[::1:hunter2", "redis://xxxxx"},
		{"sqlite://user:hunter2@h", "sqlite://user:xxxxx@h"},
		// Parameters.
		{"etcd://h/?username=u&password=hunter2&x=1", "etcd://h/?username=u&password=xxxxx&x=1"},
		{"etcd://h?PassWord=hunter2", "etcd://h?PassWord=xxxxx"},
		{"etcd://h?p%61ssword=hunter2", "etcd://h?p%61ssword=xxxxx"},
		{"etcd://h?%zz=hunter2", "etcd://h?%zz=xxxxx"},
		{"https://h?token_file=/f&client_secret=hunter2", "https://h?token_file=xxxxx&client_secret=xxxxx"},
		{"https://h?a=b?token=hunter2;secret=hunter2#token=hunter2", "https://h?a=b?token=xxxxx;secret=xxxxx#token=xxxxx"},
		{"https://h/x&password=hunter2", "https://h/x&password=xxxxx"},
		{"redis+unix:/run/x?password=hunter2", "redis+unix:/run/x?password=xxxxx"},
		{"password=hunter2", "password=xxxxx"},
		{"host=h password=hunter2", "host=h password=xxxxx"},
		{"postgres://host=h PassWord = 'hunter2 x' dbname=d", "postgres://host=h PassWord = xxxxx"},
		{"redis://u:hunter2@h?password=hunter2", "redis://u:xxxxx@h?password=xxxxx"},
	} {
		if got := Redact(c[0]); got != c[1] {
			t.Errorf("Redact(%q)\n got %q\nwant %q", c[0], got, c[1])
		}
	}
}

// With any text around a password, and any bytes in it, none of it shows.
func TestRedactHides(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// Letters that no other part of the URL has, among the worst separators.
		password := rapid.StringMatching(`[QWXYZ][QWXYZ@:/?#&=,;%\[\] .-]{0,20}[QWXYZ]`).Draw(t, "password")
		scheme := rapid.SampledFrom([]string{"redis://", "rediss+sentinel://", "http://", "redis:", "redis:/", "", "//", "sqlite://"}).Draw(t, "scheme")
		user := rapid.StringMatching(`[a-w]{0,5}`).Draw(t, "user")
		tail := rapid.SampledFrom([]string{"h", "h:6379/0", "h1:1,h2:2/m/0?prefix=p", "[::1]:1", ""}).Draw(t, "tail")
		if got := Redact(scheme + user + ":" + password + "@" + tail); strings.ContainsAny(got, "QWXYZ") {
			t.Fatalf("userinfo shows: %q", got)
		}
		value := rapid.StringMatching(`[QWXYZ%@:/.-]{1,20}`).Draw(t, "value")
		name := rapid.SampledFrom([]string{"password", "sentinel_password", "TOKEN", "client%5Fsecret"}).Draw(t, "name")
		if got := Redact("etcd://h/?a=b&" + name + "=" + value); strings.ContainsAny(got, "QWXYZ") {
			t.Fatalf("parameter shows: %q", got)
		}
	})
}

func TestRedactTakesAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		Redact(rapid.String().Draw(t, "text"))
		Redact(rapid.StringMatching(`[a-z:/@?&=\[\],%#]{0,30}`).Draw(t, "text"))
	})
}
