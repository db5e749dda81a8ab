package source

import (
	"cmp"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/decision"
	"github.com/fairlead/fairlead/pkg/model"
)

// Loaded is the result of Load.
type Loaded struct {
	Fleet model.Fleet
	// Assumed lists what the input lacked, and the values used instead.
	Assumed []string
}

// loader collects the content of documents.
type loader struct {
	file     file
	fleet    *document // the document of file; nil: none
	origins  []origin  // of each candidate
	settings map[string]string
	set      *appsv1.StatefulSet
	setDoc   document
	clusters map[model.Key]*clusterv1.Cluster
	tunnels  map[model.Key]*v1alpha1.Tunnel
	networks map[model.Key]*v1alpha1.RemoteNetwork
	docs     map[string]document // by kind and key
	assumed  []string
	errs     []error
}

// origin is where a candidate is defined, and the names of its fields there.
type origin struct {
	of     func(field string) document
	rename func(field string) string
}

// Load parses a fleet from any number of documents: in the form of Parse, or as Kubernetes objects (Cluster, Tunnel and
// RemoteNetwork; the ConfigMap fairlead-settings and the StatefulSet of the gateways define the installation). It
// ignores other objects. forward are the networks in which gateways may dial the endpoints of Clusters:
// decision.NetworkSettings.APIServers. What objects leave open is assumed, and listed in Assumed. As with Parse,
// everything must be valid; each error names file, line, column and field.
func Load(inputs []Input, forward []netip.Prefix) (Loaded, error) {
	l := &loader{
		clusters: map[model.Key]*clusterv1.Cluster{},
		tunnels:  map[model.Key]*v1alpha1.Tunnel{},
		networks: map[model.Key]*v1alpha1.RemoteNetwork{},
		docs:     map[string]document{},
	}
	for _, in := range inputs {
		all, err := documents(in)
		if err != nil {
			l.errs = append(l.errs, err)
		}
		for _, d := range all {
			l.add(d)
		}
	}
	if len(l.errs) > 0 {
		return Loaded{}, errors.Join(l.errs...)
	}
	installation := l.installation()
	candidates := l.candidates()
	if len(candidates) == 0 && l.fleet == nil && len(l.errs) == 0 {
		l.errs = append(
			l.errs,
			errors.New(
				"the input has neither a fleet nor a Cluster with a tunnel or a RemoteNetwork: give YAML of a Cluster with the "+
					"label fairlead.dev/tunnel: enabled, of its Tunnel, or of a RemoteNetwork",
			),
		)
	}
	if len(l.errs) > 0 {
		return Loaded{}, errors.Join(l.errs...)
	}
	fleet := model.Fleet{Installation: installation, Clusters: l.resolve(installation, candidates, forward)}
	if len(l.errs) > 0 {
		return Loaded{}, errors.Join(l.errs...)
	}
	return Loaded{fleet, l.assumed}, nil
}

// resolve returns the workload clusters of candidates, and of the networks. These depend on what is on record for the
// others, so the others are resolved first.
func (l *loader) resolve(
	inst model.Installation, candidates []decision.Candidate, forward []netip.Prefix,
) (all []model.WorkloadCluster) {
	names := &decision.Names{}
	for i, r := range decision.Build(inst.Domain, names, candidates) {
		if tunnel := l.tunnels[candidates[i].Key]; tunnel != nil {
			decision.Record(&tunnel.Status, r)
		}
	}
	candidates = append(candidates, l.networkCandidates(inst, forward)...)
	for i, r := range decision.Build(inst.Domain, names, candidates) {
		for _, e := range problems(r) {
			l.errs = append(l.errs, l.origins[i].problem(candidates[i].Key, e))
		}
		all = append(all, r.Cluster)
	}
	forwards := map[string]int{}
	for _, wc := range all {
		forwards[wc.ForwardsBy()]++
	}
	for i := range all {
		all[i].Forwards = forwards[all[i].ID]
	}
	return all
}

func (o origin) problem(key model.Key, err error) error {
	var field *model.FieldError
	if !errors.As(err, &field) {
		return fmt.Errorf("%s: %s: %w", o.of("").name, key, err)
	}
	return o.of(field.Field).problem(field, o.rename(field.Field))
}

// add adds one document.
func (l *loader) add(d document) {
	key := model.Key{Namespace: cmp.Or(d.head.Metadata.Namespace, metav1.NamespaceDefault), Name: d.head.Metadata.Name}
	group, _, _ := strings.Cut(d.head.APIVersion, "/")
	var err error
	switch {
	case d.head.Kind == "":
		err = l.addFleet(d)
	case d.head.Kind == "Cluster" && group == clusterv1.GroupVersion.Group:
		// any version, because the fields that are read are the same in all
		err = addObject(d, key, l.clusters, false, l.docs)
	case d.head.Kind == "Tunnel" && group == v1alpha1.GroupVersion.Group:
		err = addObject(d, key, l.tunnels, true, l.docs)
	case d.head.Kind == "RemoteNetwork" && group == v1alpha1.GroupVersion.Group:
		if err = addObject(d, key, l.networks, true, l.docs); err == nil {
			err = checkNetwork(d, l.networks[key])
		}
	case d.head.Kind == "ConfigMap" && key.Name == v1alpha1.SettingsConfigMapName:
		var settings corev1.ConfigMap
		err = d.decode(&settings, false)
		l.settings, l.docs["settings"] = settings.Data, d
	case d.head.Kind == "StatefulSet" && key.Name == gatewaySetName:
		l.set, l.setDoc = &appsv1.StatefulSet{}, d
		err = d.decode(l.set, false)
	}
	if err != nil {
		l.errs = append(l.errs, err)
	}
}

// addObject decodes one object. It is an error if the object exists twice.
func addObject[T any](d document, key model.Key, all map[model.Key]*T, strictly bool, docs map[string]document) error {
	name := d.head.Kind + " " + key.String()
	if key.Name == "" {
		return d.fault("metadata.name", errors.New("is empty: give the object a name"))
	}
	if other, twice := docs[name]; twice {
		return d.fault("metadata.name", fmt.Errorf("the %s is also in %s: remove one of them", name, other.position("")))
	}
	o := new(T)
	docs[name], all[key] = d, o
	return d.decode(o, strictly)
}

// addFleet adds a document in the form of Parse. One of these documents may define the installation, and each may
// define workload clusters.
func (l *loader) addFleet(d document) error {
	var f file
	if err := d.decode(&f, true); err != nil {
		return err
	}
	if err := checkAddresses(d, f); err != nil {
		return err
	}
	for i := range f.Clusters {
		l.origins = append(
			l.origins, origin{func(string) document { return d }, func(field string) string { return inFleet(field, i) }},
		)
	}
	clusters := append(l.file.Clusters, f.Clusters...)
	switch {
	case f.Domain == "" && l.fleet != nil: // more workload clusters
	case l.fleet != nil && l.file.Domain != "":
		return d.fault("domain", fmt.Errorf("the installation is also in %s: remove it here", l.fleet.position("domain")))
	default:
		l.file, l.fleet = f, &d
	}
	l.file.Clusters = clusters
	return nil
}

// checkAddresses reports invalid addresses with their lines.
func checkAddresses(d document, f file) error {
	var errs []error
	check := func(field, value string) {
		if _, bad := parseAddress(value, nil); len(bad) > 0 {
			errs = append(errs, d.fault(field, fmt.Errorf("%w: give host:port", bad[0])))
		}
	}
	check("public", f.Public)
	check("control", f.Control)
	for i, g := range f.Gateways {
		check(fmt.Sprintf("gateways[%d].peer", i), g.Peer)
		check(fmt.Sprintf("gateways[%d].public", i), g.Public)
	}
	for i, c := range f.Clusters {
		check(fmt.Sprintf("clusters[%d].apiServer", i), c.APIServer)
		for j, other := range c.Others {
			check(fmt.Sprintf("clusters[%d].others[%d]", i, j), other)
		}
	}
	return errors.Join(errs...)
}

// inFleet returns the name in a fleet of a field of a Tunnel.
func inFleet(field string, i int) string {
	for _, r := range [][2]string{{"spec.apiServer.others", "others"}, {"spec.revokedEdges", "revoked"}, {
		"metadata.",
		"",
	}, {"spec.", ""}} {
		if rest, ok := strings.CutPrefix(field, r[0]); ok {
			field = r[1] + rest
			break
		}
	}
	return fmt.Sprintf("clusters[%d].%s", i, field)
}

// candidates returns the fleet's candidates, then those of Clusters and of their apiservers in the order of their keys.
func (l *loader) candidates() []decision.Candidate {
	all, errs := l.file.candidates()
	l.errs = append(l.errs, errs...)
	keys := map[model.Key]bool{}
	for key, c := range l.clusters {
		if _, has := l.tunnels[key]; has || c.Labels[v1alpha1.TunnelLabel] == v1alpha1.TunnelEnabled {
			keys[key] = true
		}
	}
	for key, tunnel := range l.tunnels {
		if tunnel.OfCluster() {
			keys[key] = true
		}
	}
	for _, key := range sortedKeys(keys) {
		if slices.ContainsFunc(all, func(c decision.Candidate) bool { return c.Key == key }) {
			l.errs = append(
				l.errs, l.objectWith(key, "").fault("metadata.name", fmt.Errorf("%s is also in a fleet: remove one of them", key)),
			)
			continue
		}
		if c, ok := l.candidate(key); ok {
			all = append(all, c)
			l.origins = append(
				l.origins,
				origin{
					func(field string) document { return l.objectWith(key, field) },
					func(field string) string { return l.inObjects(key, field) },
				},
			)
		}
	}
	return append(all, l.egressCandidates()...)
}

// sortedKeys returns the keys of a map, in order.
func sortedKeys[T any](of map[model.Key]T) []model.Key {
	return slices.SortedFunc(maps.Keys(of), func(a, b model.Key) int { return strings.Compare(a.String(), b.String()) })
}

// inObjects returns the name in objects of a field that the model names. The address may be from the Cluster's
// endpoint.
func (l *loader) inObjects(key model.Key, field string) string {
	if field == "spec.apiServer" && l.objectWith(key, field).head.Kind == "Cluster" {
		return "spec.controlPlaneEndpoint"
	}
	return field
}

// objectWith returns the document of a Tunnel, or of its Cluster if there is no Tunnel or the field belongs to the
// Cluster.
func (l *loader) objectWith(key model.Key, field string) document {
	tunnel, ok := l.docs["Tunnel "+key.String()]
	cluster, has := l.docs["Cluster "+key.String()]
	if !ok || has && (field == "metadata.name" || field == "spec.apiServer" && !tunnel.has("spec.apiServer.address")) {
		return cluster
	}
	return tunnel
}

// candidate combines the objects of a key as the controller would.
func (l *loader) candidate(key model.Key) (decision.Candidate, bool) {
	cluster := l.cluster(key, "its edges dial the address in its Tunnel, otherwise 127.0.0.1:6443")
	tunnel := l.tunnel(key, metav1.NewControllerRef(cluster, clusterv1.GroupVersion.WithKind("Cluster")))
	if !tunnel.Spec.Kubeconfig.Mode.Tunnelled() {
		l.assumed = append(
			l.assumed, fmt.Sprintf("nothing for %s: its mode %s makes no tunnel", key, tunnel.Spec.Kubeconfig.Mode),
		)
	}
	return decision.CandidateOf(cluster, tunnel)
}

// cluster returns the Cluster of a key. without is the effect if the input has none: then it is an empty one.
func (l *loader) cluster(key model.Key, without string) *clusterv1.Cluster {
	cluster := l.clusters[key]
	if cluster == nil {
		l.assumed = append(
			l.assumed, fmt.Sprintf("no endpoint for %s, because the input has no Cluster of that name: %s", key, without),
		)
		cluster = &clusterv1.Cluster{}
		l.clusters[key] = cluster
	}
	cluster.Namespace, cluster.Name, cluster.UID = key.Namespace, key.Name, "cluster"
	return cluster
}

// tunnel returns the Tunnel of a key, with an owner and an id as the controller would complete it. If the input has
// none, it is a new one.
func (l *loader) tunnel(key model.Key, owner *metav1.OwnerReference) *v1alpha1.Tunnel {
	tunnel := l.tunnels[key]
	if tunnel == nil {
		tunnel = &v1alpha1.Tunnel{}
		l.tunnels[key] = tunnel
	}
	tunnel.Namespace, tunnel.Name = key.Namespace, key.Name
	tunnel.OwnerReferences = []metav1.OwnerReference{*owner}
	if tunnel.ClaimedID() == "" {
		sum := sha256.Sum256([]byte(key.String()))
		tunnel.ClaimID(strings.ToLower(base32.StdEncoding.EncodeToString(sum[:15])))
		l.assumed = append(
			l.assumed, fmt.Sprintf("the id %s for %s: the controller chooses another", tunnel.ClaimedID(), key),
		)
	}
	return tunnel
}
