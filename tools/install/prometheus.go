package main

import (
	"context"
	"os"
	"path/filepath"
	"time"
)

// prometheus is Prometheus and promtool without web pages, and without the discovery plugins for clouds, which are most
// of the code that they link. The plugins are listed in one file, which Prometheus wants its builders to change. So it
// is built from a copy of its module.
func prometheus(module string) part {
	return part{
		name: "prometheus", files: []string{"prometheus", "promtool"}, from: modFiles(module), alone: 6 * time.Minute,
		make: func(ctx context.Context, dir string) error {
			const path = "github.com/prometheus/prometheus"
			if _, err := output(ctx, module, "go", "mod", "download", path); err != nil {
				return err
			}
			source, err := moduleDir(ctx, module, path)
			if err != nil {
				return err
			}
			work, err := os.MkdirTemp(dir, "source-")
			if err != nil {
				return err
			}
			defer os.RemoveAll(work)
			if err := os.CopyFS(work, os.DirFS(source)); err != nil {
				return err
			}
			plugins := filepath.Join(work, "plugins", "plugins.go")
			if err := os.Remove(plugins); err != nil { // the file is read-only
				return err
			}
			if err := os.WriteFile(plugins, []byte("package plugins\n"), 0o600); err != nil {
				return err
			}
			_, err = output(
				ctx, work, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", dir+"/", "./cmd/prometheus", "./cmd/promtool",
			)
			return err
		},
	}
}
