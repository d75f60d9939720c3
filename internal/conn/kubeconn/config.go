package kubeconn

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kazahana/kazahana/internal/conn/connurl"
)

// Scheme is the scheme of the URLs.
const Scheme = "kubernetes"

// Config says which API server and which namespace to use.
type Config struct {
	// Namespace holds the Lease objects; "" is the pod's own, or the namespace of the
	// kubeconfig's context.
	Namespace string
	// Kubeconfig and Context are for programs outside of the cluster. Without a file, a pod
	// uses its service account; other programs use what kubectl would.
	Kubeconfig, Context string
	// NowMS is the clock that answers are noted by, in Unix ms; nil means the wall clock.
	NowMS func() int64
	// Answered is told of every answer: when its request was sent and when it came, by
	// NowMS, and the server's time in whole seconds, all in Unix ms. It may be nil.
	Answered func(sentMS, receivedMS, dateMS int64)
}

// serviceAccount is where a pod finds its namespace.
const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

// IsDNSLabel reports whether the text can be a namespace, or a part of an object's name.
func IsDNSLabel(text string) bool { return len(validation.IsDNS1123Label(text)) == 0 }

// ParseURL reads kubernetes:[NAMESPACE][?PARAMETERS]. It returns the parameters that the
// caller has allowed. It touches neither the network nor a file.
func ParseURL(raw string, allowed []string) (Config, url.Values, error) {
	place, query, _ := strings.Cut(raw, "?")
	_, namespace, _ := strings.Cut(place, ":")
	if namespace != "" && !IsDNSLabel(namespace) {
		return Config{}, nil, errors.New("the provider URL names no namespace: write kubernetes: for the pod's own, or kubernetes:NAMESPACE")
	}
	q, err := connurl.ParseQuery(query, append([]string{"kubeconfig", "context"}, allowed...))
	if err != nil {
		return Config{}, nil, err
	}
	cfg := Config{Namespace: namespace, Kubeconfig: q.Get("kubeconfig"), Context: q.Get("context")}
	if cfg.Kubeconfig != "" && !filepath.IsAbs(cfg.Kubeconfig) {
		return Config{}, nil, fmt.Errorf("kubeconfig=%s: write an absolute path", cfg.Kubeconfig)
	}
	return cfg, q, nil
}

// Place is the URL without parameters.
func (c Config) Place() string { return Scheme + ":" + c.Namespace }

// inPod reports whether the process uses its pod's service account.
func (c Config) inPod() bool {
	_, err := os.Stat(filepath.Join(serviceAccount, "token"))
	return c.Kubeconfig == "" && c.Context == "" && err == nil && os.Getenv("KUBERNETES_SERVICE_HOST") != ""
}

// load finds the server, the credentials and the namespace.
func (c Config) load() (*rest.Config, string, error) {
	if c.inPod() {
		server, err := rest.InClusterConfig()
		if err != nil {
			return nil, "", fmt.Errorf("the pod's service account: %w", err)
		}
		namespace, err := os.ReadFile(filepath.Join(serviceAccount, "namespace"))
		if c.Namespace == "" && err != nil {
			return nil, "", fmt.Errorf("the pod's namespace: %w", err)
		}
		return server, c.namespace(strings.TrimSpace(string(namespace))), nil
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	if c.Kubeconfig != "" {
		rules = &clientcmd.ClientConfigLoadingRules{ExplicitPath: c.Kubeconfig}
	}
	loaded := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: c.Context})
	server, err := loaded.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, "", errors.New("no API server is known: a pod needs its service account's token (automountServiceAccountToken), " +
			"and other programs a kubeconfig (kubeconfig=PATH, the variable KUBECONFIG, or ~/.kube/config)")
	}
	if err != nil {
		return nil, "", fmt.Errorf("the kubeconfig: %w", err)
	}
	namespace, _, err := loaded.Namespace()
	if err != nil {
		return nil, "", fmt.Errorf("the kubeconfig: %w", err)
	}
	return server, c.namespace(namespace), nil
}

func (c Config) namespace(found string) string {
	if c.Namespace != "" {
		return c.Namespace
	}
	return found
}
