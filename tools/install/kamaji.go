package main

import (
	"context"
	"os"
	"path/filepath"
	"time"
)

// kamaji is the manager of Kamaji with its install.yaml. Its module has no newer version with semantic versioning.
func kamaji(module string) part {
	const path = "github.com/clastix/kamaji"
	return part{
		name: "kamaji", files: []string{"kamaji", "kamaji.yaml"}, from: modFiles(module), alone: 8 * time.Minute,
		source: stripped(module), programs: []program{{path, "kamaji"}}, named: true,
		make: func(ctx context.Context, dir string) error {
			sources, err := moduleDir(ctx, module, path)
			if err != nil {
				return err
			}
			manifests, err := os.ReadFile(filepath.Join(sources, "config", "install.yaml"))
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(dir, "kamaji.yaml"), manifests, 0o600)
		},
	}
}
