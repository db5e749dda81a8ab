// Package kubeconfig is the command kubeconfig: it prints the kubeconfig of a workload cluster, or merges it into a
// file.
package kubeconfig

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/cli/management"
	"github.com/fairlead/fairlead/internal/cli/output"
	"github.com/fairlead/fairlead/internal/disk"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

// kubeconfigFlags are the flags of kubeconfig.
type kubeconfigFlags struct {
	management.Flags
	from      string // [namespace/]name of a copy
	into      string // a file
	name      string // of the context
	use       bool
	replace   bool
	allowExec bool
	via       string
	proxyPort uint16
}

// Command returns the command kubeconfig.
func Command() *cobra.Command {
	var f kubeconfigFlags
	cmd := &cobra.Command{
		Use:   "kubeconfig CLUSTER",
		Short: "Write the kubeconfig that reaches a workload cluster through its tunnel",
		Long: strings.TrimSpace(`
Print the kubeconfig of a workload cluster from its Secret, or add it to a file with --merge. It has one
context, CLUSTER.NAMESPACE unless --context-name is set, and contains a client key: treat it as a password.

Its server is a gateway. Inside the network of the management cluster its address answers. Elsewhere, such as
on a laptop, the kubeconfig leads through "fairlead proxy" instead, which you run meanwhile. --via=auto sends
one request without credentials to the apiserver, and chooses the address if the apiserver answers within five
seconds, else the proxy. It prints the choice, and what to run, to standard error. The command rejects a
kubeconfig that cannot work, and one that could run programs on your machine.

Needs: get on Tunnels and Secrets of the namespace. The kubeconfig makes you an administrator of the workload
cluster.
Changes: nothing without --merge; with it, the file, which then has mode 0600.
Exit codes: 0 the kubeconfig was printed or added; 1 it was rejected, or the command failed; 2 the command
line is invalid.`),
		Example: "  fairlead kubeconfig -n prod c1 >c1.kubeconfig\n  fairlead kubeconfig -n prod c1 --merge ~/.kube/config " +
			"--use\n  fairlead kubeconfig -n prod c1 --copy c1-viewer --via=proxy",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	f.AddTo(cmd.Flags())
	set := cmd.Flags()
	set.StringVarP(&f.Namespace, "namespace", "n", "", "namespace of the Cluster (default: the namespace of the context)")
	set.StringVar(
		&f.from, "copy", "",
		"name, or namespace/name, of a further kubeconfig in the Tunnel, instead of the administrator's",
	)
	set.StringVar(
		&f.into, "merge", "", "kubeconfig file to add it to, instead of standard output; created if missing",
	)
	set.StringVar(
		&f.name, "context-name", "", "name of the context, its cluster and its user (default: CLUSTER.NAMESPACE)",
	)
	set.BoolVar(&f.use, "use", false, "set the current context of the file")
	set.BoolVar(&f.replace, "replace", false, "replace a context of the same name that has another server")
	set.BoolVar(
		&f.allowExec, "allow-exec", false, "accept a user with an exec plugin, which then runs on your machine",
	)
	set.StringVar(
		&f.via, "via", viaAuto, "what the kubeconfig leads through: address, proxy (the command proxy on this machine), or "+
			"auto",
	)
	set.Uint16Var(&f.proxyPort, "proxy-port", DefaultProxyPort, "port of the command proxy on this machine")
	_ = cmd.RegisterFlagCompletionFunc("via", cobra.FixedCompletions(vias, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (f *kubeconfigFlags) run(cmd *cobra.Command, cluster string) error {
	if f.into == "" && (f.use || f.replace) {
		return output.UsageError("--use and --replace need --merge")
	}
	if !slices.Contains(vias, f.via) {
		return output.UsageError("--via: %q is invalid: must be one of %s", f.via, strings.Join(vias, ", "))
	}
	m, err := f.Open()
	if err != nil {
		return err
	}
	key := client.ObjectKey{Namespace: m.Namespace, Name: cluster}
	if f.name == "" {
		f.name = key.Name + "." + key.Namespace
	}
	config, tunnel, err := Read(cmd.Context(), m, Options{
		Cluster: key, Copy: f.from, Name: f.name, AllowExec: f.allowExec,
	})
	if err != nil {
		return err
	}
	if err := f.choose(cmd, config, tunnel); err != nil {
		return fmt.Errorf("the kubeconfig of %s: %w", key, err)
	}
	if f.into != "" {
		if err := f.merge(config); err != nil {
			return err
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "context %s is in %s\n", f.name, f.into)
		return err
	}
	text, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("writing kubeconfig: %w", err)
	}
	_, err = cmd.OutOrStdout().Write(text)
	return err
}

// Options select a kubeconfig.
type Options struct {
	Cluster   client.ObjectKey
	Copy      string // [namespace/]name of a copy; empty: the Cluster's own kubeconfig
	Name      string // of the context, its cluster and its user in the result
	AllowExec bool   // accept a user that runs a program
}

// Read returns a kubeconfig of a Cluster with one context, and the Tunnel through which it leads. A kubeconfig that
// cannot work, or that is more than data, is an error.
func Read(ctx context.Context, c client.Reader, o Options) (*clientcmdapi.Config, *v1alpha1.Tunnel, error) {
	var tunnel v1alpha1.Tunnel
	data, err := read(ctx, c, o, &tunnel)
	if err != nil {
		return nil, nil, err
	}
	config, err := oneContext(data, o.Name, o.AllowExec)
	if err != nil {
		return nil, nil, fmt.Errorf("the kubeconfig of %s: %w", o.Cluster, err)
	}
	return config, &tunnel, nil
}

// read reads a Tunnel and a kubeconfig, and checks that it leads where Fairlead directs it.
func read(ctx context.Context, c client.Reader, o Options, tunnel *v1alpha1.Tunnel) ([]byte, error) {
	key := o.Cluster
	switch err := c.Get(ctx, key, tunnel); {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf( //nolint:staticcheck // Tunnel is a kind
			"Tunnel %s not found in namespace %s: `fairlead status -A` lists all, and `fairlead join --enable` opts a "+
				"Cluster in",
			key.Name,
			key.Namespace,
		)
	case err != nil:
		return nil, management.ExplainMissing(fmt.Errorf("reading Tunnel: %w", err))
	}
	ready := meta.FindStatusCondition(tunnel.Status.Conditions, v1alpha1.ConditionKubeconfigReady)
	switch {
	case ready == nil:
		return nil, fmt.Errorf("the controller has not processed the kubeconfig of %s yet: check that it runs", key)
	case ready.Status != metav1.ConditionTrue:
		return nil, fmt.Errorf("the kubeconfig of %s does not use Fairlead: %s", key, ready.Message)
	}
	secret := client.ObjectKey{Namespace: key.Namespace, Name: key.Name + kubeconfig.Suffix}
	if o.Copy != "" {
		var err error
		if secret, err = copyOf(tunnel, o.Copy); err != nil {
			return nil, err
		}
	}
	var found corev1.Secret
	if err := c.Get(ctx, secret, &found); err != nil {
		return nil, fmt.Errorf("reading kubeconfig Secret: %w", err)
	}
	if o.Copy == "" && found.Annotations[v1alpha1.OriginalServerAnnotation] == "" &&
		tunnel.Spec.Kubeconfig.Mode.Tunnelled() {
		return nil, fmt.Errorf(
			"the Secret %s was written anew a moment ago and does not lead through the tunnel: try again", secret,
		)
	}
	return found.Data[kubeconfig.Key], nil
}

// copyOf returns the key of the Secret of an additional kubeconfig.
func copyOf(tunnel *v1alpha1.Tunnel, name string) (client.ObjectKey, error) {
	namespace, short, ok := strings.Cut(name, "/")
	if !ok {
		namespace, short = tunnel.Namespace, name
	}
	var have []string
	for _, c := range tunnel.Status.Kubeconfig.Copies {
		if c.Namespace != namespace || c.Name != short {
			have = append(have, c.Namespace+"/"+c.Name)
			continue
		}
		if c.Error != "" {
			return client.ObjectKey{}, fmt.Errorf("the copy %s is not as it should be: %s", name, c.Error)
		}
		return client.ObjectKey{Namespace: namespace, Name: short}, nil
	}
	if len(have) == 0 {
		return client.ObjectKey{}, fmt.Errorf(
			"--copy: the Tunnel %s/%s has no copies: add one to its spec.kubeconfig.copies", tunnel.Namespace, tunnel.Name,
		)
	}
	return client.ObjectKey{}, fmt.Errorf(
		"--copy: the Tunnel %s/%s has no copy %s: it has %s", tunnel.Namespace, tunnel.Name, name, strings.Join(have, ", "),
	)
}

// oneContext returns only the current context of a kubeconfig, under another name. A context that cannot work is an
// error. So is one that is more than data, unless allowExec is set: the writer of a Secret must not run programs on
// this machine.
func oneContext(data []byte, name string, allowExec bool) (*clientcmdapi.Config, error) {
	file, err := clientcmd.Load(data)
	if err != nil {
		return nil, errors.New(
			"its Secret holds no kubeconfig: delete the Secret: its control-plane provider creates it again",
		)
	}
	current := file.Contexts[file.CurrentContext]
	if current == nil || file.Clusters[current.Cluster] == nil || file.AuthInfos[current.AuthInfo] == nil {
		return nil, errors.New("it has no current context with a cluster and a user")
	}
	cluster, user := file.Clusters[current.Cluster], file.AuthInfos[current.AuthInfo]
	if err := checkCluster(cluster); err != nil {
		return nil, err
	}
	if field := OutsideOfUser(user); field != "" && (field != "exec" || !allowExec) {
		cure := "it is of use on one machine only, and not trusted"
		if field == "exec" {
			cure = fmt.Sprintf("it would run %q on your machine: review it, and use --allow-exec", user.Exec.Command)
		}
		return nil, fmt.Errorf("its user has %s: %s", field, cure)
	}
	if err := checkUser(user, time.Now()); err != nil {
		return nil, err
	}
	out := clientcmdapi.NewConfig()
	out.Clusters[name], out.AuthInfos[name] = cluster, user
	out.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name, Namespace: current.Namespace}
	out.CurrentContext = name
	return out, nil
}

func checkCluster(c *clientcmdapi.Cluster) error {
	server, err := url.Parse(c.Server)
	switch {
	case err != nil || server.Scheme != "https" || server.Host == "":
		return errors.New("its server is not an https URL: see the condition KubeconfigReady of the Tunnel")
	case c.InsecureSkipTLSVerify:
		return errors.New(
			"it has insecure-skip-tls-verify, which lets any machine on the path read and change the traffic: configure its " +
				"provider to set the CA",
		)
	case c.CertificateAuthority != "":
		return errors.New("it names certificate-authority, a file of some machine: the CA has to be in it")
	case !x509.NewCertPool().AppendCertsFromPEM(c.CertificateAuthorityData):
		return errors.New("it has no CA certificate: delete the Secret: its control-plane provider creates it again")
	}
	return nil
}

// checkUser checks that a client certificate, if there is one, is still valid.
func checkUser(u *clientcmdapi.AuthInfo, now time.Time) error {
	if len(u.ClientCertificateData) == 0 {
		return nil
	}
	block, _ := pem.Decode(u.ClientCertificateData)
	if block == nil {
		return errors.New("its client certificate cannot be parsed")
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return errors.New("its client certificate cannot be parsed")
	}
	if !now.Before(leaf.NotAfter) {
		return fmt.Errorf(
			"its client certificate expired at %s: delete the Secret, and the control-plane provider renews it",
			leaf.NotAfter.UTC().Format(time.RFC3339),
		)
	}
	return nil
}

// merge adds a kubeconfig with one context to a file.
func (f *kubeconfigFlags) merge(one *clientcmdapi.Config) error {
	path, err := filepath.EvalSymlinks(f.into) // otherwise the link would be replaced instead of its target
	if errors.Is(err, fs.ErrNotExist) {
		path, err = f.into, nil
	}
	if err != nil {
		return fmt.Errorf("--merge: %w", err)
	}
	unlock, err := lockKubeconfig(path)
	if err != nil {
		return err
	}
	defer unlock()
	all, err := clientcmd.LoadFromFile(path)
	fresh := errors.Is(err, fs.ErrNotExist)
	switch {
	case fresh:
		all = clientcmdapi.NewConfig()
	case err != nil:
		// the file may hold keys, which errors of the parser quote
		return fmt.Errorf("--merge: %s is not a kubeconfig; it was not changed", f.into)
	}
	if err := f.collides(all, one); err != nil {
		return err
	}
	added := one.Contexts[f.name]
	if before := all.Contexts[f.name]; before != nil { // settings of the user
		added.Namespace, added.Extensions = before.Namespace, before.Extensions
	}
	all.Clusters[f.name], all.AuthInfos[f.name], all.Contexts[f.name] = one.Clusters[f.name], one.AuthInfos[f.name], added
	if fresh || f.use {
		all.CurrentContext = f.name
	}
	text, err := clientcmd.Write(*all)
	if err != nil {
		return fmt.Errorf("writing kubeconfig: %w", err)
	}
	return disk.Replace(path, text)
}

// collides returns an error if the file has an entry of the same name that leads elsewhere.
func (f *kubeconfigFlags) collides(all, one *clientcmdapi.Config) error {
	if f.replace {
		return nil
	}
	has, ok := all.Clusters[f.name]
	_, user := all.AuthInfos[f.name]
	context, named := all.Contexts[f.name]
	switch {
	case ok && !sameCluster(has, one.Clusters[f.name]):
		return fmt.Errorf(
			"--merge: %s has a cluster %s with server %s: use --context-name or --replace", f.into, f.name, has.Server,
		)
	case named && (context.Cluster != f.name || context.AuthInfo != f.name), !ok && user:
		return fmt.Errorf(
			"--merge: %s has a context or a user %s of something else: use --context-name or --replace", f.into, f.name,
		)
	}
	return nil
}

// sameCluster reports whether two entries lead to the same apiserver. Through the address of the gateways and through
// the local proxy the server may differ, but not the CA and the name that clients verify.
func sameCluster(a, b *clientcmdapi.Cluster) bool {
	return a.TLSServerName == b.TLSServerName &&
		(a.Server == b.Server || bytes.Equal(a.CertificateAuthorityData, b.CertificateAuthorityData))
}

// lockKubeconfig keeps kubectl and other users of client-go from writing the file at the same time.
func lockKubeconfig(path string) (unlock func(), err error) {
	lock := path + ".lock"
	file, err := os.OpenFile(lock, os.O_CREATE|os.O_EXCL, 0)
	switch {
	case errors.Is(err, fs.ErrExist):
		return nil, fmt.Errorf("--merge: %s is locked by another process: try again, or remove the stale lock %s", path, lock)
	case err != nil:
		return nil, fmt.Errorf("--merge: %w", err)
	}
	return func() { _ = file.Close(); _ = os.Remove(lock) }, nil
}
