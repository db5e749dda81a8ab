#!/usr/bin/env bash
# Writes every generated file of the repository: Go from .proto, deep copies and the CRD of api/v1alpha1.
# Usage: tools/generate/generate.sh PYTHON_WITH_GRPCIO_TOOLS
set -euo pipefail
python=$1
cd "$(dirname "$0")/../.."
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
for tool in google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc sigs.k8s.io/controller-tools/cmd/controller-gen; do
  (cd tools/generate && GOFLAGS=-mod=readonly go build -o "$bin/" "$tool")
done
PATH="$bin:$PATH" "$python" -m grpc_tools.protoc -I . --go_out=. --go_opt=paths=source_relative \
  --go-grpc_out=. --go-grpc_opt=paths=source_relative pkg/enrol/v1/enrol.proto pkg/diagnose/collect/v1/inspect.proto pkg/report/v1/report.proto
"$bin/controller-gen" object crd paths=./api/... output:crd:dir=deploy/kubernetes/crd
cp deploy/kubernetes/crd/*.yaml deploy/chart/fairlead/files/crd/
