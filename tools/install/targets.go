package main

import (
	"path/filepath"
	"time"
)

// namedTargets is a program with the clients of Talos' apid, Ironic and Redfish, and a stand-in for apid.
func namedTargets(module string) part {
	return part{
		name: "named-targets", files: []string{"named-targets"}, alone: 3 * time.Minute,
		from: append(
			modFiles(module), filepath.Join(module, "main.go"), filepath.Join(module, "pki.go"),
			filepath.Join(module, "apid.go"), filepath.Join(module, "provider.go"), filepath.Join(module, "hardware.go"),
		),
		source:   stripped(module),
		programs: []program{{"github.com/fairlead/fairlead/tools/targets", "named-targets"}},
	}
}
