// Command server is the API server of Kubernetes, for tests: make check runs the Kubernetes
// provider on it. It takes minutes to build; internal/testkit/kubetest keeps it in the user's
// cache directory.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() { os.Exit(cli.Run(app.NewAPIServerCommand())) }
