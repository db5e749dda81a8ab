package main

import (
	"context"
	"os"
	"path/filepath"
	"time"
)

const clusterAPIProviderAWS = "sigs.k8s.io/cluster-api-provider-aws/v2"

// awsProvider is a program that runs the code with which the provider for EKS writes kubeconfigs, and the CRD of its
// control plane.
func awsProvider(module string) part {
	return part{
		name: "capa-reconcile", files: []string{"capa-reconcile", "capa-crd.yaml"}, alone: 5 * time.Minute,
		from:   append(modFiles(module), filepath.Join(module, "main.go"), filepath.Join(module, "cloud.go")),
		source: stripped(module), programs: []program{{"github.com/fairlead/fairlead/tools/capa", "capa-reconcile"}},
		make: func(ctx context.Context, dir string) error {
			sources, err := moduleDir(ctx, module, clusterAPIProviderAWS)
			if err != nil {
				return err
			}
			crd, err := os.ReadFile(
				filepath.Join(sources, "config", "crd", "bases", "controlplane.cluster.x-k8s.io_awsmanagedcontrolplanes.yaml"),
			)
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(dir, "capa-crd.yaml"), crd, 0o600)
		},
	}
}
