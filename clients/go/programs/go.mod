// Programs that the repository's tests and benchmarks run. Nothing installs them, so they
// may replace the client by the one beside them.
module github.com/kazahana/kazahana/clients/go/programs

go 1.26.0

require (
	github.com/google/uuid v1.6.0
	github.com/kazahana/kazahana/clients/go v0.0.0
)

replace github.com/kazahana/kazahana/clients/go => ../
