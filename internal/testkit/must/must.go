// Package must ends a test at an error that the test is not about.
package must

// test is a testing.TB, or a *rapid.T.
type test interface {
	Helper()
	Fatal(args ...any)
}

// Succeed ends the test if there is an error.
func Succeed(t test, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
