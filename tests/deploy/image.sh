#!/usr/bin/env bash
# `make image-test`: builds the Dockerfile with buildah on a stand-in for its base image, and runs tests/deploy/test_image.py
# against it with podman. Everything is kept below build/image. Needs root, or subordinate ids for the user.
set -euo pipefail
cd "$(dirname "$0")/../.."

tools=(buildah podman runc mmdebstrap)
if ! command -v "${tools[@]}" >/dev/null; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "image-test needs ${tools[*]}" >&2
        exit 1
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${tools[@]}"
fi

work=$PWD/build/image
mkdir -p "$work"
cat >"$work/containers.conf" <<END
[containers]
default_ulimits=["nofile=20000:20000", "nproc=10000:10000"]
[engine]
runtime="runc"
cgroup_manager="cgroupfs"
events_logger="file"
END
cat >"$work/storage.conf" <<END
[storage]
driver="overlay"
graphroot="$work/graph"
runroot="$work/run"
END
export CONTAINERS_CONF=$work/containers.conf CONTAINERS_STORAGE_CONF=$work/storage.conf
base=docker.io/library/python:3.11-slim-bookworm image=localhost/neuronserve:test

# A Debian with Python, in the place of the image that the Dockerfile names: no registry of images is asked.
if ! buildah inspect --type image "$base" >/dev/null 2>&1; then
    packages=ca-certificates,python3-minimal,python3-venv,python3-pip
    mmdebstrap --quiet --variant=minbase --include="$packages" bookworm "$work/base.tar"
    container=$(buildah from scratch)
    buildah add -q "$container" "$work/base.tar" / >/dev/null
    buildah run --isolation chroot "$container" -- sh -c \
        'ln -s /usr/bin/python3 /usr/local/bin/python; rm -f /usr/lib/python3*/EXTERNALLY-MANAGED'
    buildah config --env PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin --cmd python3 "$container"
    buildah commit -q --rm "$container" "$base" >/dev/null
    rm "$work/base.tar"
fi

begin=$SECONDS
buildah bud --isolation chroot --pull-never --format docker --layers --quiet --build-arg PYTHON_IMAGE="$base" \
    --build-arg REVISION="$(git rev-parse --short HEAD 2>/dev/null || echo unknown)" \
    -v /etc/ssl/certs:/etc/ssl/certs:ro -t "$image" . >/dev/null
echo "built in $((SECONDS - begin)) s"
IMAGE=$image BASE_IMAGE=$base "${BIN:-.venv/bin}/python" -m pytest -s tests/deploy/test_image.py
