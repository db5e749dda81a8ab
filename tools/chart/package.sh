#!/usr/bin/env bash
# Packages the Helm chart. The same files give the same bytes on each machine, so registries have one digest for it.
# Usage: tools/chart/package.sh VERSION REGISTRY FOLDER
# VERSION is the tag of the images, such as v1.2.3, and may lack the v. The version of the chart never has it.
# REGISTRY becomes the default registry of the images, without the http:// that turns TLS off. It may be empty.
set -euo pipefail
version=${1#v} registry=${2#http://} folder=$3
cd "$(dirname "$0")/../.."
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -r deploy/chart/fairlead "$copy/"
sed -i "s|^  registry: \"\"\$|  registry: \"$registry\"|" "$copy/fairlead/values.yaml"
# The package contains the time and the mode of each file.
find "$copy/fairlead" -type f -exec chmod 0644 {} + -exec touch --date=2026-01-01T00:00:00Z {} +
mkdir -p "$folder"
bin/helm package "$copy/fairlead" --destination "$folder" --version "$version" --app-version "v$version"
