# Targets: run, build, test, check, lint, fuzz, proof, mutants, model, bench, bench-check, bench-short,
# bench-leases, bench-locks, bench-clients, test-etcd, storm,
# chaos, roll, pictures, cross, packages,
# test-packages, release, release-check, clean.
# `make run` and `make test` need Go, Python 3 and Node only; what else they
# need they install.

# If a part of a pipe fails, the target fails.
SHELL       := bash
.SHELLFLAGS := -o pipefail -c

GO      ?= go
VERSION ?= $(shell git describe --tags --match 'v[0-9]*' --always --dirty 2>/dev/null || echo dev)
COMMIT  ?= $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)
TOOLS   := $(CURDIR)/.tools

.PHONY: run build bin-bench test check setup lint fuzz proof simulate mutants model bench bench-check bench-short bench-leases bench-locks bench-clients test-etcd storm chaos roll pictures cross packages test-packages release release-check clean

## run: build, start the daemon, show five IDs that came through the socket, keep serving.
run: build
	@scripts/run

## build: the one static binary, bin/kazahanad.
build:
	@CGO_ENABLED=0 $(GO) build -trimpath -tags grpcnotrace,nopgxregisterdefaulttypes -ldflags '$(LDFLAGS)' -o bin/kazahanad ./cmd/kazahanad

# The benchmarks are a module of their own: the daemon needs nothing of what they compare it with.
bin-bench:
	@$(GO) build -C bench -o ../bin/bench .

## test: the ring "all", up to four parts at a time; installs what the tests need.
test: setup
	@scripts/test

## check: the ring "deep", in about 40 minutes: lint, fuzzing, benchmarks for a moment, other systems, the proof, chaos, storms, packages and units, the race detector everywhere.
check: setup
	@scripts/check

## setup: what the tests need and a fresh machine lacks.
setup:
	@scripts/setup

## lint: gofmt, go vet, staticcheck.
lint:
	@scripts/lint

## fuzz: each fuzz target for FUZZTIME (default 20s).
fuzz:
	@scripts/fuzz

## proof: the table of the rules of uniqueness, each switched off once, in SEEDS worlds (default 4000); then the same for placement.
proof:
	@KZTEST_RING=deep $(GO) test ./test/proof -count=1 -v -timeout 60m -run 'TestNoTwoIDsAreEqual|TestEachRuleIsNeeded|TestASeedRepeatsARun' -proof.seeds=$(or $(SEEDS),4000) | grep -v '^=== '
	@KZTEST_RING=deep $(GO) test ./internal/placement/driver -count=1 -v -timeout 60m -run '^TestSimulation' -placement.seeds=$(or $(SEEDS),4000) | grep -v '^=== '

## mutants: breaks each of the rules in the program's text, and sees who catches it: the table of test/mutation/caught.txt; MUTANTS=-mutation.only=pool runs those whose name or file matches.
mutants:
	@KZTEST_RING=deep $(GO) test ./test/mutation -count=1 -v -timeout 4h -run '^TestEachMutationIsCaught$$' $(MUTANTS) | grep -v '^=== '

## simulate: hosts with all that ships, their disks, networks, clocks and stores failing, in SEEDS worlds (default 300); a table of which faults met which states.
simulate:
	@KZTEST_RING=deep $(GO) test ./test/proof -count=1 -v -timeout 60m -run '^(TestSimulation|TestEachRuleOfTheWholeIsNeeded|TestASeedRepeatsAWholeRun)$$' -proof.seeds=$(or $(SEEDS),300) | grep -v '^=== '

## model: TLC searches the specifications of docs/model, whole and without each rule; tables and stories.
model: setup
	@KZTEST_RING=deep $(GO) test ./test/model -count=1 -v -timeout 60m -model.full | grep -v '^=== '

## bench: the daemon beside echo servers, Redis and katsubushi, one interleaved run of about 6 minutes; BENCH=-h explains.
bench: build bin-bench
	@bin/bench ids $(BENCH)

## bench-check: the same; fails if any target is missed by more than its margin.
bench-check: build bin-bench
	@bin/bench ids -check $(BENCH)

## bench-short: all suites for a moment; fails if something does not start, or answers wrongly under load.
bench-short: build bin-bench
	@bin/bench all -short $(BENCH)

## bench-leases: 4,000 hosts acquire at once from a lease server on SQLite, Redis, etcd and PostgreSQL, with many machine IDs and with 4,210, about 7 minutes; fails if that takes more than 8 s, on etcd 15 s, or one acquire more than 5 s at p99.
bench-leases: build bin-bench
	@bin/bench leases -check $(BENCH)

## bench-locks: locks and sequences on SQLite, Redis and etcd beside the bare commands, about 7 minutes; BENCH=-h explains, BENCH=-check fails if a target is missed.
bench-locks: build bin-bench
	@bin/bench locks $(BENCH)

## bench-clients: the clients of all languages beside UUIDs and a bare round trip, about 2 minutes; BENCH=-h explains, BENCH=-check fails if an aim is missed.
bench-clients: build bin-bench
	@bin/bench clients $(BENCH)

## test-etcd: the etcd provider's tests against ETCD (default v3.6.6) instead of Debian's release.
test-etcd:
	@scripts/test-etcd $(ETCD)

## storm: 8 Python processes, 4 of Node, 2 of Java and one of Go ask for 30 s while the daemon is killed -9 and restarted twice.
storm:
	@KZTEST_RING=deep KAZAHANA_STORM=30s $(GO) test ./test/storm -count=1 -v -run '^TestStorm$$'

## chaos: providers are killed, emptied and frozen under 22 daemons, lease servers under clients that use locks, and daemons that place 10,000 chat rooms; copies of directories are put back, and disks frozen; docs/chaos.md has the options for CHAOS.
chaos: setup
	@KZTEST_RING=deep $(GO) test ./test/chaos -count=1 -v -timeout 90m -run '^TestChaos' -chaos.full $(CHAOS)

## roll: under kazahanad run, an unmodified generator is scaled from 1 replica to 50 on 64 machine IDs, replaced, and scaled back, with kills; make check does it with 12.
roll: setup
	@KZTEST_RING=deep $(GO) test ./cmd/kazahanad -count=1 -v -run '^TestRunRolls$$' -roll.replicas=50

## pictures: takes those of docs/status-page.md anew, in four minutes.
pictures: setup
	@KZTEST_RING=all $(GO) test ./cmd/kazahanad -count=1 -timeout 15m -run '^TestPictures$$|^TestStatusPages$$' -pictures $(CURDIR)/docs/images

## cross: it also builds for arm64 and macOS.
cross:
	@for t in linux/arm64 darwin/arm64; do \
		echo "build $$t"; GOOS=$${t%/*} GOARCH=$${t#*/} CGO_ENABLED=0 $(GO) build -o /dev/null ./cmd/kazahanad || exit 1; done

## packages: .deb, .rpm and .tar.gz for this machine's architecture, in dist/.
packages:
	@scripts/packages

## test-packages: lintian, and the .deb installed, upgraded, removed and purged in a Debian 12 that is booted; needs root.
test-packages:
	@scripts/test-packages

## release: everything that is published of the last commit, in dist/: built twice and compared, with checksums that KEY signs; docs/packages.md.
release:
	@scripts/release

## release-check: the same with a key that exists for a moment, and keeps nothing; ten minutes and more, TARGETS=linux/amd64 shortens it to two.
release-check:
	@scripts/release-check

clean:
	@rm -rf bin
