package kubernetes_test

import (
	"path"
	"strings"
	"testing"
)

// TestNoStateFolderIsAMount: the programs remove other users' access to their state directory, which only the owner of
// a directory can do. kubelet leaves the mount point of a volume to root.
func TestNoStateFolderIsAMount(t *testing.T) {
	found := 0
	for name, template := range workloads(t, apiserver(t)) {
		for _, container := range template.Spec.Containers {
			mounts := map[string]bool{}
			for _, m := range container.VolumeMounts {
				mounts[path.Clean(m.MountPath)] = true
			}
			for _, argument := range container.Args {
				dir, ok := strings.CutPrefix(argument, "--state-dir=")
				if !ok {
					continue
				}
				found++
				if mounts[path.Clean(dir)] {
					t.Errorf("%s: %s is the mount point of a volume", name, dir)
				}
			}
		}
	}
	if found != 2 {
		t.Errorf("there are %d state folders, want those of the xds-server and of the gateway", found)
	}
}
