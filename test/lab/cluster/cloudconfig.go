package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"sigs.k8s.io/yaml"
)

// defaultPermissions are those of cloud-init (its module write_files).
const defaultPermissions = "0644"

// cloudConfig is the part of a cloud-config that Cluster API's kubeadm bootstrap provider writes for a worker
// (bootstrap/kubeadm/internal/cloudinit/node.go).
type cloudConfig struct {
	WriteFiles []struct {
		Path        string `json:"path"`
		Owner       string `json:"owner"`
		Permissions string `json:"permissions"`
		Content     string `json:"content"`
	} `json:"write_files"`
	RunCmd []string `json:"runcmd"`
}

// parseCloudConfig returns an error if the text has a field that is not supported here, because it would be lost.
func parseCloudConfig(text []byte) (c cloudConfig, err error) {
	if err := yaml.UnmarshalStrict(text, &c); err != nil {
		return c, err
	}
	if len(c.RunCmd) == 0 {
		return c, errors.New("the cloud-config has no runcmd")
	}
	return c, nil
}

// writeFiles writes the files, which root owns.
func (c cloudConfig) writeFiles() error {
	for _, f := range c.WriteFiles {
		mode, err := strconv.ParseUint(cmp.Or(f.Permissions, defaultPermissions), 8, 9)
		if err != nil {
			return fmt.Errorf("permissions of %s: %w", f.Path, err)
		}
		if err := os.MkdirAll(filepath.Dir(f.Path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(f.Path, []byte(f.Content), fs.FileMode(mode)); err != nil {
			return err
		}
	}
	return nil
}
