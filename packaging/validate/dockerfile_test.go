package validate

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

// image is what the Dockerfile says, in the parts that matter to who runs it.
type image struct {
	build       []string // commands of the first stage
	copies      []copied // of the last one
	env         []string
	user        string
	entrypoint  []string
	command     []string
	healthcheck []string
	labels      map[string]string
}

// copied is a COPY --from=build.
type copied struct{ from, to, owner string }

func readDockerfile(t *testing.T) (i image) {
	t.Helper()
	text := readText(t, "../Dockerfile")
	parsed, err := parser.Parse(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if len(parsed.Warnings) > 0 {
		t.Errorf("the parser warns: %+v", parsed.Warnings)
	}
	stages, _, err := instructions.Parse(parsed.AST, nil)
	if err != nil {
		t.Fatal(err)
	}
	i.labels = map[string]string{}
	if len(stages) != 2 || stages[1].BaseName != "scratch" {
		t.Fatalf("%d stages, the last one from %s: want a build and an empty one", len(stages), stages[len(stages)-1].BaseName)
	}
	for _, c := range stages[0].Commands {
		if run, ok := c.(*instructions.RunCommand); ok {
			i.build = append(i.build, strings.Join(run.CmdLine, " "))
		}
	}
	for _, c := range stages[1].Commands {
		switch c := c.(type) {
		case *instructions.CopyCommand:
			if c.From != stages[0].Name || len(c.SourcePaths) != 1 {
				t.Errorf("COPY %v from %q", c.SourcePaths, c.From)
			}
			i.copies = append(i.copies, copied{c.SourcePaths[0], c.DestPath, c.Chown})
		case *instructions.EnvCommand:
			for _, kv := range c.Env {
				i.env = append(i.env, kv.Key+"="+kv.Value)
			}
		case *instructions.UserCommand:
			i.user = c.User
		case *instructions.EntrypointCommand:
			i.entrypoint = execForm(t, c.CmdLine, c.PrependShell)
		case *instructions.CmdCommand:
			i.command = execForm(t, c.CmdLine, c.PrependShell)
		case *instructions.HealthCheckCommand:
			i.healthcheck = execForm(t, c.Health.Test[1:], c.Health.Test[0] != "CMD")
		case *instructions.LabelCommand:
			for _, kv := range c.Labels {
				i.labels[kv.Key] = strings.Trim(kv.Value, `"`)
			}
		case *instructions.ExposeCommand, *instructions.ArgCommand:
		default:
			t.Errorf("the image is made by an unexpected instruction: %v", c)
		}
	}
	return i
}

// execForm makes sure that a command needs no shell: there is none.
func execForm(t *testing.T, command []string, shell bool) []string {
	t.Helper()
	if shell {
		t.Errorf("%v needs a shell, and the image has none", command)
	}
	return command
}

func TestDockerfile(t *testing.T) {
	i := readDockerfile(t)
	if i.user != "65532:65532" {
		t.Errorf("the image runs as %q, the manifests as %d", i.user, userID)
	}
	if !slices.Equal(i.entrypoint, i.healthcheck[:1]) {
		t.Errorf("the entrypoint is %v, and the health check runs %v", i.entrypoint, i.healthcheck)
	}
}

// The image names itself, by the keys of the OCI image specification.
func TestImageLabels(t *testing.T) {
	labels := readDockerfile(t).labels
	for key, want := range map[string]string{
		"title": "kazahanad", "licenses": "MIT", "version": "${VERSION}", "revision": "${COMMIT}",
		"source": "https://github.com/kazahana/kazahana", "description": "64-bit, time-sortable, unique IDs on a Unix socket, from leased machine IDs",
	} {
		if got := labels["org.opencontainers.image."+key]; got != want {
			t.Errorf("the label %s is %q, want %q", key, got, want)
		}
	}
	if got := labels["io.github.kazahana.build-image"]; got != "${GO_IMAGE}" {
		t.Errorf("it does not say what it is built with, but %q", got)
	}
}

// Nothing is built from or run in an image with a name that means another one tomorrow, and the
// image is built by the Go that go.mod names.
func TestVersionsArePinned(t *testing.T) {
	toolchain := regexp.MustCompile(`(?m)^toolchain go(\S+)$`).FindStringSubmatch(readText(t, "../../go.mod"))
	version := regexp.MustCompile(`(?m)^ARG GO_IMAGE=golang:([^@\s]+)(?:@sha256:[0-9a-f]{64})?$`).FindStringSubmatch(readText(t, "../Dockerfile"))
	if toolchain == nil || version == nil || toolchain[1] != version[1] {
		t.Errorf("go.mod names %q, the Dockerfile %q", toolchain, version)
	}
	pinned := regexp.MustCompile(`^[a-z./]+:\d+\.\d+\.\d+(@sha256:[0-9a-f]{64})?$`)
	for _, w := range workloads(t) {
		for _, c := range w.containers() {
			if !pinned.MatchString(c.Image) {
				t.Errorf("%s: container %s runs %s, which is no version in full", w.file, c.Name, c.Image)
			}
		}
	}
}

func readText(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// What the Dockerfile builds from is let through to it, and nothing else.
func TestBuildContext(t *testing.T) {
	text := readText(t, "../Dockerfile.dockerignore")
	used := map[string]bool{} // by path that is let through
	for line := range strings.Lines(text) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "!"); ok {
			used[name] = false
		}
	}
	root := repository(t)
	list := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{if .Main}}{{$.Dir}}{{end}}{{end}}", "./cmd/kazahanad")
	list.Dir, list.Stderr = root, os.Stderr
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	needed := []string{filepath.Join(root, "go.mod"), filepath.Join(root, "go.sum")}
	for _, path := range append(needed, strings.Fields(string(out))...) {
		relative, err := filepath.Rel(root, path)
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for name := range used {
			if strings.HasPrefix(filepath.ToSlash(relative)+"/", name+"/") {
				found, used[name] = true, true
			}
		}
		if !found {
			t.Errorf("the build needs %s, which the Dockerfile's .dockerignore keeps out", relative)
		}
	}
	for name, needed := range used {
		if !needed {
			t.Errorf("nothing in the build needs %s", name)
		}
	}
}

func repository(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return root
}
