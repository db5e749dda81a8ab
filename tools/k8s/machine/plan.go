package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/third_party/forked/golang/expansion"
)

// plan returns how the container starts: its program, arguments, environment, volumes and user.
func (c *container) plan() (containerStart, error) {
	start := containerStart{Dir: "/", Groups: []int{}}
	if c.spec.WorkingDir != "" {
		start.Dir = c.spec.WorkingDir
	}
	env, err := c.environment()
	if err != nil {
		return start, err
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		start.Env = append(start.Env, name+"="+env[name])
	}
	expand := expansion.MappingFuncFor(env)
	for _, word := range slices.Concat(c.spec.Command, c.spec.Args) {
		start.Argv = append(start.Argv, fmt.Sprint(expansion.Expand(word, expand)))
	}
	if len(c.spec.Command) == 0 {
		start.Argv = slices.Insert(start.Argv, 0, imageName(c.spec.Image))
	}
	if start.Program, err = c.program(start.Argv[0]); err != nil {
		return start, err
	}
	if path.Base(start.Program) == "machine" {
		start.Argv = []string{"machine", "idle"}
	}
	start.Mounts, err = c.mounts()
	c.setUser(&start)
	return start, err
}

// program returns the path of a container's program: the machine's program of that name, whatever its path in the
// image; if there are several, the one for the image's tag; else the given path. kube-scheduler, without which kubeadm
// does not finish, is replaced by the idle role.
func (c *container) program(command string) (string, error) {
	name := path.Base(command)
	for _, own := range []string{name + ":" + imageTag(c.spec.Image), name} {
		if own = filepath.Join(programDir, own); exists(own) {
			return own, nil
		}
	}
	if name == "kube-scheduler" {
		return filepath.Join(programDir, "machine"), nil
	}
	found, err := lookPath(command)
	if err != nil {
		return "", fmt.Errorf("image %q, command %q: this machine has no such program: give it one with --program %s=PATH",
			c.spec.Image, command, name)
	}
	return found, nil
}

// lookPath is exec.LookPath with the PATH of services.
func lookPath(command string) (string, error) {
	if strings.Contains(command, "/") {
		return exec.LookPath(command)
	}
	for _, dir := range filepath.SplitList(systemPath) {
		if found, err := exec.LookPath(filepath.Join(dir, command)); err == nil {
			return found, nil
		}
	}
	return "", fmt.Errorf("%s: %w", command, exec.ErrNotFound)
}

// imageName returns the last part of an image's name, without tag and digest.
func imageName(image string) string {
	name, _, _ := strings.Cut(path.Base(image), "@")
	name, _, _ = strings.Cut(name, ":")
	return name
}

// imageTag returns the tag of an image, or an empty string.
func imageTag(image string) string {
	name, _, _ := strings.Cut(path.Base(image), "@")
	_, tag, _ := strings.Cut(name, ":")
	return tag
}

// environment returns the container's environment. It supports only what a static Pod can have: no ConfigMaps and no
// Secrets.
func (c *container) environment() (map[string]string, error) {
	env := map[string]string{"PATH": systemPath, "HOSTNAME": c.pod.config.Hostname}
	if len(c.spec.EnvFrom) > 0 {
		return nil, errors.New("envFrom: a static Pod can't have ConfigMaps and Secrets")
	}
	for _, v := range c.spec.Env {
		switch {
		case v.ValueFrom == nil:
			env[v.Name] = fmt.Sprint(expansion.Expand(v.Value, expansion.MappingFuncFor(env)))
		case v.ValueFrom.FieldRef != nil:
			value, err := c.pod.field(v.ValueFrom.FieldRef.FieldPath)
			if err != nil {
				return nil, fmt.Errorf("env %s: %w", v.Name, err)
			}
			env[v.Name] = value
		default:
			return nil, fmt.Errorf("env %s: this machine knows only values and fieldRef", v.Name)
		}
	}
	return env, nil
}

func (p *pod) field(path string) (string, error) {
	fields := map[string]string{
		"metadata.name": p.spec.Name, "metadata.namespace": p.spec.Namespace, "metadata.uid": p.hash,
		"spec.nodeName": p.config.Hostname, "status.hostIP": p.config.Address, "status.podIP": p.config.Address,
		"status.hostIPs": p.config.Address, "status.podIPs": p.config.Address,
		"spec.serviceAccountName": p.spec.Spec.ServiceAccountName,
	}
	value, ok := fields[path]
	if !ok {
		return "", fmt.Errorf(
			"fieldRef %s: this machine knows only %s", path, strings.Join(slices.Sorted(maps.Keys(fields)), ", "),
		)
	}
	return value, nil
}

func (c *container) setUser(start *containerStart) {
	if all := c.pod.spec.Spec.SecurityContext; all != nil {
		start.UID, start.GID = all.RunAsUser, all.RunAsGroup
		for _, group := range all.SupplementalGroups {
			start.Groups = append(start.Groups, int(group))
		}
		if all.FSGroup != nil {
			start.Groups = append(start.Groups, int(*all.FSGroup))
		}
	}
	if own := c.spec.SecurityContext; own != nil {
		if own.RunAsUser != nil {
			start.UID = own.RunAsUser
		}
		if own.RunAsGroup != nil {
			start.GID = own.RunAsGroup
		}
	}
	if start.UID != nil && start.GID == nil {
		start.GID = new(int64)
	}
}

// prepareVolumes creates the folders of the Pod's volumes.
func (p *pod) prepareVolumes() error {
	for i := range p.spec.Spec.Volumes {
		v := &p.spec.Spec.Volumes[i]
		from, err := p.volume(v)
		if err != nil {
			return fmt.Errorf("volume %s: %w", v.Name, err)
		}
		if v.HostPath != nil {
			err = hostPath(v.HostPath)
		} else {
			// Writable for the container's user, as with the kubelet.
			err = errors.Join(os.MkdirAll(from, 0o777), os.Chmod(from, 0o777))
		}
		if err != nil {
			return fmt.Errorf("volume %s: %w", v.Name, err)
		}
	}
	return nil
}

// volume returns the path of a volume on the machine.
func (p *pod) volume(v *corev1.Volume) (string, error) {
	switch {
	case v.HostPath != nil:
		return filepath.Clean(v.HostPath.Path), nil
	case v.EmptyDir != nil:
		return filepath.Join(p.folder(), "volumes", "kubernetes.io~empty-dir", v.Name), nil
	}
	return "", errors.New("this machine knows only hostPath and emptyDir")
}

// hostPath checks a path, or creates it if its type permits that.
func hostPath(v *corev1.HostPathVolumeSource) error {
	kind := corev1.HostPathUnset
	if v.Type != nil {
		kind = *v.Type
	}
	info, err := os.Stat(v.Path)
	switch kind {
	case corev1.HostPathUnset, corev1.HostPathDirectoryOrCreate:
		if err != nil {
			return os.MkdirAll(v.Path, 0o755)
		}
	case corev1.HostPathFileOrCreate:
		if err != nil {
			return touch(v.Path)
		}
	case corev1.HostPathDirectory:
		if err != nil || !info.IsDir() {
			return fmt.Errorf("hostPath %s is no folder", v.Path)
		}
	default:
		if err != nil {
			return fmt.Errorf("hostPath %s is missing", v.Path)
		}
	}
	return nil
}

func (c *container) mounts() ([]mount, error) {
	var all []mount
	for _, m := range c.spec.VolumeMounts {
		at := slices.IndexFunc(c.pod.spec.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		if at < 0 {
			return nil, fmt.Errorf("volumeMount %s: there is no such volume", m.Name)
		}
		from, err := c.pod.volume(&c.pod.spec.Spec.Volumes[at])
		if err != nil {
			return nil, fmt.Errorf("volume %s: %w", m.Name, err)
		}
		if m.SubPath != "" {
			from = filepath.Join(from, m.SubPath)
			if err := os.MkdirAll(from, 0o755); err != nil {
				return nil, err
			}
		}
		all = append(all, mount{From: from, At: filepath.Clean(m.MountPath), ReadOnly: m.ReadOnly})
	}
	return all, nil
}
