package egress

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

// Folders on a control-plane machine.
const (
	machineStateDir  = "/var/lib/fairlead-egress"
	machineSecretDir = "/etc/fairlead-egress"
	patchesDir       = "/etc/kubernetes/fairlead-patches"
	// patchFile is a name that kubeadm requires: of the component, with a suffix that orders files, and the kind.
	patchFile = "kube-apiserver0+strategic.yaml"
)

// staticPodPatch returns the strategic merge patch of the static Pod of kube-apiserver.
func (p Params) staticPodPatch() []byte {
	return document(object{"spec": object{
		"containers": []any{
			object{
				"name": "kube-apiserver", "volumeMounts": []corev1.VolumeMount{{Name: socketVolume, MountPath: socketDir}},
			},
			p.sidecar(true),
		},
		"volumes": []corev1.Volume{
			{Name: socketVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
				Medium: corev1.StorageMediumMemory,
			}}},
			hostVolume(stateVolume, machineStateDir),
			hostVolume(secretVolume, machineSecretDir),
		},
	}})
}

func hostVolume(name, path string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: path, Type: ptr.To(corev1.HostPathDirectory)},
	}}
}

// prepareCommand gives the folders of the sidecar to its user.
var prepareCommand = fmt.Sprintf(
	"install -d -m 0700 -o %[1]d -g %[1]d %[2]s && chown -R %[1]d:%[1]d %[3]s", user, machineStateDir, machineSecretDir,
)

// Kubeadm returns the fields of a KubeadmControlPlane. kubeadm adds the sidecar to the static Pod of kube-apiserver by
// a patch, so that both start and end together, and share a folder that no other Pod can open.
func Kubeadm(p Params) []byte {
	files := []bootstrapv1.File{
		{Path: configDir + "/" + configFile, Owner: "root:root", Permissions: "0644", Content: SocketSelector()},
		{Path: patchesDir + "/" + patchFile, Owner: "root:root", Permissions: "0600", Content: string(p.staticPodPatch())},
		{
			Path: machineSecretDir + "/" + v1alpha1.BootstrapFileKey, Owner: "root:root", Permissions: "0600",
			ContentFrom: bootstrapv1.FileSource{
				Secret: bootstrapv1.SecretFileSource{Name: p.SecretName(), Key: v1alpha1.BootstrapFileKey},
			},
		},
	}
	var args []bootstrapv1.Arg
	for _, f := range p.flags() {
		args = append(args, bootstrapv1.Arg{Name: f.name, Value: ptr.To(f.value)})
	}
	patches := object{"directory": patchesDir}
	return documents([2]any{`
Set these fields of the KubeadmControlPlane. Lists replace yours: keep your own entries. Machines are replaced one
after the other, and each new one enrols with the token that the Secret has at that time.`, object{
		"apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": "KubeadmControlPlane",
		"metadata": object{"namespace": p.Namespace, "name": p.Cluster},
		"spec": object{"kubeadmConfigSpec": object{
			"clusterConfiguration": object{"apiServer": object{
				"extraArgs": args,
				"extraVolumes": []bootstrapv1.HostPathMount{{
					Name: configVolume, HostPath: configDir, MountPath: configDir, ReadOnly: ptr.To(true),
					PathType: corev1.HostPathDirectory,
				}},
			}},
			"initConfiguration":  object{"patches": patches},
			"joinConfiguration":  object{"patches": patches},
			"files":              files,
			"preKubeadmCommands": []string{prepareCommand},
		}},
	}})
}

// Files returns the parts for any other apiserver: the files with their paths, the patch of a static Pod, and flags. If
// plain is not nil, it also returns the configuration of an apiserver that dials the gateways itself.
func Files(p Params, plain *Gateway) []byte {
	all := [][2]any{
		{"The flags of kube-apiserver.", p.arguments()},
		{
			"The file " + configDir + "/" + configFile + " in the container of kube-apiserver.",
			raw(SocketSelector()),
		},
		{
			"The part of the static Pod of kube-apiserver, to merge by the names of containers and volumes.\n" +
				"On the machine run first:\n  " + prepareCommand + "\nwhere " + machineSecretDir + "/" + v1alpha1.BootstrapFileKey +
				" is that key of the Secret " + p.Namespace + "/" + p.SecretName() + ".",
			raw(string(p.staticPodPatch())),
		},
	}
	if plain != nil {
		all = append(all, [2]any{
			"Only where no container can run beside kube-apiserver: it dials the gateways itself. It reads the certificate\n" +
				"when it starts, so restart it before that expires. edge-agent renews the certificate in its state folder.",
			raw(GatewaySelector(*plain)),
		})
	}
	return documents(all...)
}
