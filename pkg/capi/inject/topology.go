// Package inject knows what makes an edge arrive with a control-plane machine that kubeadm sets up: which files, commands
// and names have to be in the machine's bootstrap configuration. In goes what an installation and a Cluster are called; out
// comes the change, as a change of a KubeadmConfigSpec, as patches of a ClusterClass and as a piece of YAML: all three from
// one definition. It reads and writes no Kubernetes object, and the same input gives the same bytes.
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

// DefaultAPIServerPort is the port on which kubeadm has an apiserver listen when nothing else is said.
const DefaultAPIServerPort = 6443

// imagePattern takes what image references are made of, and nothing that means something in YAML or in a template.
var imagePattern = regexp.MustCompile(ImagePattern)

// ImagePattern and DomainPattern are what variables of a ClusterClass may have, so that no value can change the meaning of
// the text it is put into.
const (
	ImagePattern  = `^[a-z0-9]([A-Za-z0-9._/:@-]*[A-Za-z0-9])?$`
	DomainPattern = `^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`
	maxImage      = 255
)

// Options is what differs between control planes.
type Options struct {
	// Cluster is the Cluster whose control plane it is.
	Cluster model.Key
	// Domain is the tunnel domain of the installation.
	Domain model.TunnelDomain
	// Image is that of the edge.
	Image string
	// APIServerPort is where the apiserver of each machine listens: initConfiguration.localAPIEndpoint.bindPort. Zero stands
	// for DefaultAPIServerPort.
	APIServerPort int32
}

// values turns options into the words of an injection. The error names the field at fault and the cure.
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
			Field: "image", Value: o.Image, Problem: "is no image reference of at most 255 characters",
			Cure: "give the image of the edge, such as registry.example.com/fairlead-edge:v1",
		}
	}
	port := o.APIServerPort
	if port == 0 {
		port = DefaultAPIServerPort
	}
	if port < 1 || port > 65535 {
		return values{}, &model.FieldError{
			Field: "apiServerPort", Value: strconv.Itoa(int(port)), Problem: "is no port",
			Cure: "give initConfiguration.localAPIEndpoint.bindPort, from 1 to 65535, or nothing for 6443",
		}
	}
	return values{hostname: hostname, secret: o.Cluster.Name + v1alpha1.BootstrapSecretSuffix, image: o.Image, port: strconv.Itoa(int(port))}, nil
}

// Hostname is the name that goes into the serving certificate of the apiservers.
func (o Options) Hostname() (string, error) {
	v, err := o.values()
	return v.hostname, err
}

// Inject adds to the bootstrap configuration of a control plane what its edges need. What is there already stays as it is,
// and nothing is added twice; a file of an earlier injection is replaced.
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

// Fields is Inject for a KubeadmConfigSpec of any version, as the fields that JSON has. On an error the fields may have
// been changed in part.
func Fields(config map[string]any, o Options) error {
	v, err := o.values()
	if err != nil {
		return err
	}
	return v.into(config)
}

// Check says whether a KubeadmConfigSpec, as the fields that JSON has, has all that its edges need. The error names what is
// missing and where it comes from.
func Check(config map[string]any, o Options) error {
	v, err := o.values()
	if err != nil {
		return err
	}
	if port, ok, _ := nestedNumber(config, "initConfiguration", "localAPIEndpoint", "bindPort"); ok && strconv.FormatInt(port, 10) != v.port {
		return &model.FieldError{
			Field: "initConfiguration.localAPIEndpoint.bindPort", Value: strconv.FormatInt(port, 10),
			Problem: "edges would dial the apiserver of their machine at port " + v.port, Cure: "set apiServerPort of the variable " + VariableName,
		}
	}
	want := runtime.DeepCopyJSON(config)
	if err := v.into(want); err != nil {
		return err
	}
	for _, path := range [][]string{filesPath, commandsPath, sansPath} {
		have, err := nestedList(config, path)
		if err != nil {
			return err
		}
		if whole, _ := nestedList(want, path); !reflect.DeepEqual(have, whole) {
			return fmt.Errorf("%s of kubeadmConfigSpec lacks what edges need: another patch has replaced the list: let it add to the list, or let it come before Fairlead's", join(path))
		}
	}
	return nil
}
