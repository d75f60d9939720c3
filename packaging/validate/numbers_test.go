package validate

import (
	"path"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
)

// The patch of docs/replica-numbers.md has the fields of a Deployment. It starts what
// the manifest starts, from a volume that it mounts.
func TestReplicaNumberFromAnImageVolume(t *testing.T) {
	page := readText(t, "../../docs/replica-numbers.md")
	_, patch, found := strings.Cut(page, "```\nspec:\n")
	patch, _, _ = strings.Cut(patch, "```")
	if !found {
		t.Fatal("the page has no patch")
	}
	objects, err := decode(t, []byte("apiVersion: apps/v1\nkind: Deployment\nspec:\n"+patch))
	if err != nil {
		t.Fatal(err)
	}
	pod := objects[0].(*appsv1.Deployment).Spec.Template.Spec
	app, volume := pod.Containers[0], pod.Volumes[0]
	whole := find[*appsv1.Deployment](t, numberFile)[0].Spec.Template.Spec.Containers[0]
	if app.Name != whole.Name || !slices.Equal(app.Command[1:], whole.Command[1:]) || app.Command[0] != path.Join(app.VolumeMounts[0].MountPath, whole.Command[0]) {
		t.Errorf("the patch starts %v in %s, the manifest %v in %s", app.Command, app.Name, whole.Command, whole.Name)
	}
	if volume.Image == nil || volume.Image.Reference != "kazahana:0.1.0" || app.VolumeMounts[0].Name != volume.Name || !app.VolumeMounts[0].ReadOnly {
		t.Errorf("the volume is %+v, mounted as %+v", volume, app.VolumeMounts)
	}
}
