module github.com/fairlead/fairlead/tools/dns/externaldns

go 1.26.0

// Only its CRD is used.
require sigs.k8s.io/external-dns v0.21.0
