// Package inject defines how an edge arrives with a control-plane machine that kubeadm sets up: the files, commands
// and names that the machine's bootstrap configuration must contain. The input is the names of an installation and a
// Cluster; the output is the change, as a change of a KubeadmConfigSpec, as patches of a ClusterClass, or as YAML, all
// from one definition. The package reads and writes no Kubernetes objects, and is deterministic.
package inject

import (
	"fmt"
	"reflect"
	"regexp"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime"
	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
)

// DefaultAPIServerPort is the default port of an apiserver with kubeadm.
const DefaultAPIServerPort = 6443

// imagePattern matches image references, and nothing that has a meaning in YAML or in a template.
var imagePattern = regexp.MustCompile(ImagePattern)

// ImagePattern and DomainPattern are the patterns of ClusterClass variables, so that no value can change the meaning
// of the text that contains it.
const (
	ImagePattern  = `^[a-z0-9]([A-Za-z0-9._/:@-]*[A-Za-z0-9])?$`
	DomainPattern = `^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`
	maxImage      = 255
)

// Options are the values that differ between control planes.
type Options struct {
	// Cluster is the Cluster of the control plane.
	Cluster model.Key
	// Domain is the tunnel domain of the installation.
	Domain model.TunnelDomain
	// Image is the image of the edge.
	Image string
	// APIServerPort is the port of the apiserver on each machine: initConfiguration.localAPIEndpoint.bindPort. Zero
	// means DefaultAPIServerPort.
	APIServerPort int32
}

// values validates options and converts them. The error names the invalid field and the remedy.
func (o Options) values() (values, error) {
	if err := o.Domain.Validate(); err != nil {
		return values{}, err
	}
	hostname, err := o.Domain.Hostname(o.Cluster)
	if err != nil {
		return values{}, err
	}
	if len(o.Image) > maxImage || !imagePattern.MatchString(o.Image) {
		return values{}, &model.FieldError{
			Field: "image", Value: o.Image, Problem: "is not an image reference of at most 255 characters",
			Cure: "give the image of the edge, such as registry.example.com/fairlead/fairlead-edge:v0.1.0",
		}
	}
	port := o.APIServerPort
	if port == 0 {
		port = DefaultAPIServerPort
	}
	if port < 1 || port > 65535 {
		return values{}, &model.FieldError{
			Field: "apiServerPort", Value: strconv.Itoa(int(port)), Problem: "is not a port",
			Cure: "give initConfiguration.localAPIEndpoint.bindPort, from 1 to 65535, or nothing for 6443",
		}
	}
	return values{
		hostname: hostname,
		secret:   o.Cluster.Name + v1alpha1.BootstrapSecretSuffix,
		image:    o.Image,
		port:     strconv.Itoa(int(port)),
	}, nil
}

// Hostname returns the tunnel hostname, for the serving certificate of the apiservers.
func (o Options) Hostname() (string, error) {
	v, err := o.values()
	return v.hostname, err
}

// Inject adds an edge to the bootstrap configuration of a control plane. It keeps existing content and adds nothing
// twice. A file of an earlier injection is replaced.
func Inject(spec *bootstrapv1.KubeadmConfigSpec, o Options) error {
	config, err := runtime.DefaultUnstructuredConverter.ToUnstructured(spec)
	if err != nil {
		return fmt.Errorf("reading kubeadmConfigSpec: %w", err)
	}
	if err := Fields(config, o); err != nil {
		return err
	}
	*spec = bootstrapv1.KubeadmConfigSpec{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(config, spec); err != nil {
		return fmt.Errorf("writing kubeadmConfigSpec: %w", err)
	}
	return nil
}

// Fields is Inject for a KubeadmConfigSpec of any version, as decoded JSON. After an error config may be partly
// changed.
func Fields(config map[string]any, o Options) error {
	v, err := o.values()
	if err != nil {
		return err
	}
	return v.into(config)
}

// Check checks that a KubeadmConfigSpec, as decoded JSON, contains everything that its edges need. The error names
// what is missing and its likely cause.
func Check(config map[string]any, o Options) error {
	v, err := o.values()
	if err != nil {
		return err
	}
	if port, ok, _ := nestedNumber(config, "initConfiguration", "localAPIEndpoint", "bindPort"); ok &&
		strconv.FormatInt(port, 10) != v.port {
		return &model.FieldError{
			Field: "initConfiguration.localAPIEndpoint.bindPort", Value: strconv.FormatInt(port, 10),
			Problem: "edges would dial the apiserver of their machine at port " + v.port, Cure: "set apiServerPort of the " +
				"variable " + VariableName,
		}
	}
	want := runtime.DeepCopyJSON(config)
	if want == nil { // the template has no kubeadmConfigSpec
		want = map[string]any{}
	}
	if err := v.into(want); err != nil {
		return err
	}
	for _, path := range [][]string{filesPath, commandsPath, sansPath} {
		have, err := nestedList(config, path)
		if err != nil {
			return err
		}
		if whole, _ := nestedList(want, path); !reflect.DeepEqual(have, whole) {
			return fmt.Errorf(
				"%s of kubeadmConfigSpec lacks entries of the edge: another patch has replaced the list: change it to append to "+
					"the list, or order it before Fairlead's patch",
				join(path),
			)
		}
	}
	return nil
}
