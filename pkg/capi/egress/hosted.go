package egress

// Kamaji returns a ConfigMap, and the fields of a KamajiControlPlane of Cluster API, or of a TenantControlPlane that is
// used without it. Kamaji sets --kubelet-preferred-address-types itself, from a field.
func Kamaji(p Params) []byte {
	const addresses = "kubelet-preferred-address-types"
	return documents(
		[2]any{"Apply this first.", p.configMap()},
		[2]any{`
Set these fields of the KamajiControlPlane. Lists replace yours: keep your own entries. Remove spec.addons.konnectivity
in the same change, because that addon overwrites --egress-selector-config-file.`, object{
			"apiVersion": "controlplane.cluster.x-k8s.io/v1alpha2", "kind": "KamajiControlPlane",
			"metadata": object{"namespace": p.Namespace, "name": p.Cluster},
			"spec": object{
				"apiServer":  object{"extraArgs": p.arguments(addresses), "extraVolumeMounts": apiserverMounts()},
				"kubelet":    object{"preferredAddressTypes": addressTypes},
				"deployment": object{"extraContainers": []any{p.sidecar(false)}, "extraVolumes": p.hostedVolumes()},
			},
		}},
		[2]any{`
Without Cluster API, set the same fields of the TenantControlPlane, and remove spec.addons.konnectivity. Under a
KamajiControlPlane change only that: its controller overwrites this object.`, object{
			"apiVersion": "kamaji.clastix.io/v1alpha1", "kind": "TenantControlPlane",
			"metadata": object{"namespace": p.Namespace, "name": p.Cluster},
			"spec": object{
				"kubernetes": object{"kubelet": object{"preferredAddressTypes": addressTypes}},
				"controlPlane": object{"deployment": object{
					"extraArgs":              object{"apiServer": p.arguments(addresses)},
					"additionalContainers":   []any{p.sidecar(false)},
					"additionalVolumes":      p.hostedVolumes(),
					"additionalVolumeMounts": object{"apiServer": apiserverMounts()},
				}},
			},
		}},
	)
}

// K0smotron returns a ConfigMap, and the fields of a K0smotronControlPlane. All three are required together: without
// controlPlaneFlags k0s configures its own konnectivity, k0sConfig has the flags of kube-apiserver, and patches add the
// sidecar and its volumes.
func K0smotron(p Params) []byte {
	args := map[string]string{}
	for _, f := range p.flags() {
		args[f.name] = f.value
	}
	patch := document(object{"spec": object{"template": object{"spec": object{
		"containers": []any{object{"name": "controller", "volumeMounts": apiserverMounts()}, p.sidecar(false)},
		"volumes":    p.hostedVolumes(),
	}}}})
	return documents(
		[2]any{"Apply this first.", p.configMap()},
		[2]any{`
Set these fields of the K0smotronControlPlane. They have not been run with k0smotron: its types are checked, and the
effect of the three fields together is not.`, object{
			"apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": "K0smotronControlPlane",
			"metadata": object{"namespace": p.Namespace, "name": p.Cluster},
			"spec": object{
				"controlPlaneFlags": []string{"--disable-components=konnectivity-server"},
				"k0sConfig": object{
					"apiVersion": "k0s.k0sproject.io/v1beta1", "kind": "ClusterConfig",
					"spec": object{"api": object{"extraArgs": args}},
				},
				"patches": []any{object{
					"target": object{"kind": "StatefulSet", "component": "control-plane"},
					"patch":  object{"type": "strategic", "content": string(patch)},
				}},
			},
		}},
	)
}
