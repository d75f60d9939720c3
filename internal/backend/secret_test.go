package backend

import (
	"strings"
	"testing"
)

// A password that is not percent-encoded may be cut anywhere: no error shows a part of it.
func TestErrorsShowNoPartOfAPassword(t *testing.T) {
	for _, scheme := range append(Schemes(), "") {
		if scheme == "sqlite" {
			continue // a path, which is no secret
		}
		for _, slashes := range []string{":", "://", ":/run/x?password="} {
			for _, cut := range []string{"?", "/", "#", "%", "@", "&", "=", ":", ",", " ", "?&", "?=", "?term=", "?=&"} {
				password := "3xq" + cut + "jun" + cut + "jwer" + cut[:1] + "2xq"
				for _, raw := range []string{
					scheme + slashes + "u:" + password + "@127.0.0.1:1/db", scheme + slashes + "u:1" + password + "@127.0.0.1:1/db?ca_file=/f",
					scheme + slashes + "host=h password=" + password, scheme + slashes + "127.0.0.1:1/db?" + password,
				} {
					_, err := Terms(raw)
					_, openErr := OpenProvider(raw, ProviderOptions{})
					for _, err := range []error{err, openErr} {
						for _, part := range []string{"3xq", "jun", "jwer", "2xq"} {
							if err != nil && strings.Contains(err.Error(), part) {
								t.Errorf("%s shows %s: %v", raw, part, err)
							}
						}
					}
				}
			}
		}
	}
}
