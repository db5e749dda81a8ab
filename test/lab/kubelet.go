package lab

import (
	"context"

	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/netns"
)

// Pod is a Pod in every workload cluster of StartKubelet, in the namespace default, that can run commands.
const Pod = "shell"

// StartKubelet starts a kubelet without containers in the workload network, and gives both workload clusters a Node for
// it and a Pod on it: commands in the Pod run on this machine.
func (l *Lab) StartKubelet(ctx context.Context) error {
	for _, apiServer := range []*kube.APIServer{l.SNI, l.Connect} {
		if err := apiServer.CreateNode(ctx, "worker", netns.WorkloadAddress, Pod); err != nil {
			return err
		}
	}
	_, err := kube.StartKubelet(ctx, l.Workspace, kube.KubeletSpec{
		Name: "kubelet", Namespace: l.Network.Workload, Address: netns.WorkloadAddress, CA: l.SNI.CA,
	})
	return err
}
