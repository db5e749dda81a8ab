package networks

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/hosted"
	"github.com/fairlead/fairlead/test/world"
)

// operator is the user who has the permissions of deploy/site-operator.
const operator = "site-operator"

// operates proves that the operator of a site can revoke its edges, and has no other permission for that than those of
// deploy/site-operator.
func (f *fleet) operates(t *testing.T) {
	site := newRemote(t, f.World, "site4", "10.4.0.0/16")
	f.shop.network(t, "site4", v1alpha1.RemoteNetworkSpec{CIDRs: []string{"10.4.0.0/16"}, Ports: hosted.Ports()})
	edge, _ := site.edge(t, f.shop, "edge", 2, "site4", "--apiserver-listen=10.4.0.2:6443")
	machine := site.machine(t, "machine", 5)
	eventually(t, f.shop.answers(authority(machine, echoPort), "site4/machine"))
	kubeconfig := f.operator(t, "site4")
	that(t, "the operator of a site revokes an edge, and its streams end in both directions", func(t *testing.T) {
		conn := f.open(t, f.shop, authority(machine, echoPort))
		back, err := machine.DialContext(t.Context(), "tcp", "10.4.0.2:6443")
		must(t, err)
		defer func() { _ = back.Close() }()
		node := world.Steal(t, edge).Subject.Node
		cmd := f.Network.Management.Command(
			t.Context(), f.Parts.OwnPath("fairlead"), "edge", "revoke", node, "-n", world.Namespace, "--network=site4",
		)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &out
		began := time.Now()
		must(t, cmd.Start())
		must(t, ended(conn, closing+busy))
		must(t, ended(back, closing+busy))
		measured("operator_revoked_s", time.Since(began).Seconds())
		if err := cmd.Wait(); err != nil || !strings.Contains(out.String(), "no gateway has a tunnel of it") {
			t.Errorf("%v: %s", err, &out)
		}
	})
	that(t, "the network without its revoked edge is not reached, and others are", func(t *testing.T) {
		eventually(t, func(ctx context.Context) error {
			if who, err := f.shop.who(ctx, authority(machine, echoPort)); err == nil {
				return fmt.Errorf("%s answers", who)
			}
			return nil
		})
		must(t, f.shop.RunsOn("node2", f.node2)(t.Context()))
	})
}

// operator writes the kubeconfig of a user with the Role of deploy/site-operator for a network, and returns its path.
func (f *fleet) operator(t *testing.T, network string) string {
	t.Helper()
	role, err := os.ReadFile(filepath.Join(f.Parts.Root, "deploy", "site-operator", "role.yaml"))
	must(t, err)
	text := strings.NewReplacer("site1", network, "namespace: prod", "namespace: "+world.Namespace).Replace(string(role))
	must(t, f.Management.Apply(t.Context(), []byte(text+`---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: operator, namespace: `+world.Namespace+`}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: `+network+`-operator}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: `+operator+`}]
`)))
	admin, err := f.ManagementKubeconfig()
	must(t, err)
	config, err := clientcmd.LoadFromFile(admin)
	must(t, err)
	for _, user := range config.AuthInfos {
		user.Impersonate = operator
	}
	path := f.File(network + "-operator.kubeconfig")
	must(t, clientcmd.WriteToFile(*config, path))
	return path
}
