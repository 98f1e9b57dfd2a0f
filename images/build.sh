#!/usr/bin/env bash
# Builds an image with docker or buildah, and pushes it on request: prints the reference, with its digest, for cluster.image.ref.
# --sbom writes what is in it (Debian's, Python's and other packages) as CycloneDX JSON, by syft.
#   images/build.sh cpu|trainer [--push REGISTRY] [--sbom FILE] [BUILD OPTION ...]      e.g. --build-arg BASE=localhost/base:dev
set -euo pipefail

usage() {
    echo "usage: images/build.sh cpu|trainer [--push REGISTRY] [--sbom FILE] [BUILD OPTION ...]" >&2
    exit 2
}

image="${1:-}"
case "$image" in cpu | trainer) shift ;; *) usage ;; esac
registry="" sbom=""
while [[ "${1:-}" == --push || "${1:-}" == --sbom ]]; do
    [[ -n "${2:-}" ]] || usage
    case "$1" in --push) registry="$2" ;; --sbom) sbom="$(realpath "$2")" ;; esac
    shift 2
done

cd "$(dirname "$0")/.."
if [[ -n "$sbom" ]]; then
    syft="$(python3 tools/gotools.py path syft)"
    scan=(/syft scan --quiet --output cyclonedx-json dir:/)
fi
revision="$(git rev-parse HEAD 2>/dev/null || echo unknown)"
name="${registry:-localhost}/opd-$image"
tag="$name:${revision:0:12}"
options=(--file "images/$image/Dockerfile" --build-arg "REVISION=$revision" --tag "$tag" "$@" .)

if command -v buildah > /dev/null; then
    buildah build --ignorefile "images/$image/Dockerfile.dockerignore" "${options[@]}"
    push() { buildah push --digestfile "$1" "$tag" && digest="$(cat "$1")"; }
    list() {
        container="$(buildah from --pull-never "$tag")"
        buildah run --user 0 --volume "$syft:/syft:ro" "$container" -- "${scan[@]}" || status=$?
        buildah rm "$container" > /dev/null
        return "${status:-0}"
    }
elif command -v docker > /dev/null && docker info > /dev/null 2>&1; then
    DOCKER_BUILDKIT=1 docker build "${options[@]}"
    list() { docker run --rm --user 0 --volume "$syft:/syft:ro" "$tag" "${scan[@]}"; }
    push() { docker push "$tag" && digest="$(docker inspect --format '{{index .RepoDigests 0}}' "$tag" | sed 's/.*@//')"; }
else
    echo "images/build.sh: neither buildah nor a docker daemon is here: install one (Debian: apt-get install buildah)" >&2
    exit 1
fi

if [[ -n "$sbom" ]]; then
    list > "$sbom"
    echo "$sbom: what is in it" >&2
fi
if [[ -z "$registry" ]]; then
    echo "built $tag; use it on this machine's nodes with cluster.image.ref=$tag, cluster.image.local=true"
else
    digestfile="$(mktemp)"
    trap 'rm -f "$digestfile"' EXIT
    push "$digestfile"
    echo "cluster.image.ref=$name@$digest"
fi
