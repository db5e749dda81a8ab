package main

import (
	"context"
	"os"
	"path/filepath"
)

const clusterAPIProviderAWS = "sigs.k8s.io/cluster-api-provider-aws/v2"

// awsProvider is a program that runs the code with which the provider for EKS writes kubeconfigs, and the CRD of its control plane.
func awsProvider(module string) part {
	return part{
		name: "capa-reconcile", cold: "3 min", files: []string{"capa-reconcile", "capa-crd.yaml"},
		from: append(modFiles(module), filepath.Join(module, "main.go"), filepath.Join(module, "cloud.go")),
		make: func(ctx context.Context, dir string) error {
			if err := build(ctx, module, filepath.Join(dir, "capa-reconcile"), ".", "-s -w"); err != nil {
				return err
			}
			source, err := output(ctx, module, "go", "list", "-m", "-f", "{{.Dir}}", clusterAPIProviderAWS)
			if err != nil {
				return err
			}
			crd, err := os.ReadFile(filepath.Join(source, "config", "crd", "bases", "controlplane.cluster.x-k8s.io_awsmanagedcontrolplanes.yaml"))
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(dir, "capa-crd.yaml"), crd, 0o600)
		},
	}
}
