package main

import (
	"bytes"
	"debug/elf"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// A base is what the images of one architecture share: static for programs without libraries, glibc adds the libraries
// that Envoy is linked with.
type base struct {
	static, glibc tree
	packages      map[string]pin // by name
}

// staticPackages are the packages of which the static base has files.
var staticPackages = []string{"base-files", "ca-certificates"}

// loaders are the paths of glibc's loader, which programs contain.
var loaders = map[string]string{"amd64": "lib64/ld-linux-x86-64.so.2", "arm64": "lib/ld-linux-aarch64.so.1"}

// triplets are the names of Debian's folders of libraries.
var triplets = map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}

// libraries are the parts of glibc that Envoy is linked with. newImage fails if Envoy requires another one.
var libraries = []string{"libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1"}

const (
	certificates = "etc/ssl/certs/ca-certificates.crt"
	accounts     = "root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n"
	groups       = "root:x:0:\nnonroot:x:65532:\n"
)

// newBase takes the files that the images need from the packages. Scanners find the packages in /etc/os-release and
// dpkg's status.d, as in distroless images.
func newBase(debs []deb, arch string) (base, error) {
	b := base{static: tree{}, glibc: tree{}, packages: map[string]pin{}}
	byName := map[string]deb{}
	for _, d := range debs {
		byName[d.pin.name], b.packages[d.pin.name] = d, d.pin
	}
	for _, name := range append(slices.Clone(staticPackages), "libc6") {
		d, ok := byName[name]
		if !ok {
			return base{}, fmt.Errorf("%s does not pin %s for %s", packagesFile, name, arch)
		}
		to := b.static
		if name == "libc6" {
			to = b.glibc
		}
		if err := d.describe(to); err != nil {
			return base{}, err
		}
	}
	if err := b.addStatic(byName); err != nil {
		return base{}, err
	}
	return b, b.addGlibc(byName["libc6"], arch)
}

// describe adds what documents a package: its paragraph for scanners, and its licences.
func (d deb) describe(to tree) error {
	name := d.pin.name
	if !bytes.Contains(d.control, []byte("Package: "+name+"\n")) ||
		!bytes.Contains(d.control, []byte("Version: "+d.pin.version+"\n")) {
		return fmt.Errorf("package %s: its control file describes another package than %s", name, packagesFile)
	}
	licences, ok := d.files["usr/share/doc/"+name+"/copyright"]
	if !ok {
		return fmt.Errorf("package %s has no copyright file", name)
	}
	to.plain("usr/share/doc/"+name+"/copyright", licences)
	to.plain("var/lib/dpkg/status.d/"+name, d.control)
	return nil
}

func (b base) addStatic(debs map[string]deb) error {
	system, ok := debs["base-files"].files["usr/lib/os-release"]
	if !ok {
		return fmt.Errorf("base-files has no usr/lib/os-release")
	}
	var roots bytes.Buffer
	files := debs["ca-certificates"].files
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasPrefix(name, "usr/share/ca-certificates/") && path.Ext(name) == ".crt" {
			roots.Write(files[name])
		}
	}
	const fewest = 100 // Mozilla trusts about 140
	if n := bytes.Count(roots.Bytes(), []byte("BEGIN CERTIFICATE")); n < fewest {
		return fmt.Errorf("ca-certificates has %d certificates, want at least %d", n, fewest)
	}
	b.static.plain("usr/lib/os-release", system)
	b.static["etc/os-release"] = file{link: "../usr/lib/os-release", mode: 0o777}
	b.static.plain(certificates, roots.Bytes())
	b.static.plain("etc/passwd", []byte(accounts))
	b.static.plain("etc/group", []byte(groups))
	b.static.plain("etc/nsswitch.conf", []byte("hosts: files dns\n"))
	b.static["tmp"] = file{folder: true, mode: 0o1777}
	b.static["home/nonroot"] = file{folder: true, mode: 0o700, owner: user}
	b.static["var/lib/fairlead"] = file{folder: true, mode: 0o700, owner: user}
	return nil
}

// addGlibc adds the libraries with Debian's merged /usr.
func (b base) addGlibc(libc deb, arch string) error {
	folder := "usr/lib/" + triplets[arch] + "/"
	for _, name := range append(slices.Clone(libraries), path.Base(loaders[arch])) {
		data, ok := libc.files[folder+name]
		if !ok {
			return fmt.Errorf("libc6 of %s has no %s", arch, folder+name)
		}
		b.glibc.program(folder+name, data)
	}
	if loader := "usr/" + loaders[arch]; path.Dir(loader) != path.Clean(folder) {
		to := strings.Repeat("../", strings.Count(loader, "/")) + folder + path.Base(loader)
		b.glibc[loader] = file{link: to, mode: 0o777}
	}
	b.glibc["lib"] = file{link: "usr/lib", mode: 0o777}
	if path.Dir(loaders[arch]) == "lib64" {
		b.glibc["lib64"] = file{link: "usr/lib64", mode: 0o777}
	}
	return nil
}

// checkProgram checks that a program is for an architecture and requires only the libraries of the base.
func checkProgram(data []byte, arch string) error {
	program, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return err
	}
	defer program.Close()
	want := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[arch]
	if program.Machine != want {
		return fmt.Errorf("it is for %s, want %s", program.Machine, want)
	}
	if program.Section(".dynamic") == nil {
		return nil
	}
	needed, err := program.ImportedLibraries()
	if err != nil {
		return err
	}
	for _, library := range needed {
		if !slices.Contains(libraries, library) && library != path.Base(loaders[arch]) {
			return fmt.Errorf("it requires %s, which the image does not have", library)
		}
	}
	return nil
}
