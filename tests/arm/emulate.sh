#!/usr/bin/env bash
# `make arm-test`: kernels and golden files on an emulated ARM host, which has every path for ARM (qemu-user, of CPU max).
#
# Everything is below build/arm: Debian's Python for arm64 (packages unpacked, not installed), PyPI's wheels for it, and
# kernels that this host has compiled for it. The tests are rows of run.py with a time limit each; arguments select the
# rows with one of them in their level or name.
set -euo pipefail
cd "$(dirname "$0")/../.."
bin=${BIN:-.venv/bin} work=$PWD/build/arm
root=$work/root site=$work/site apt=$work/apt
mkdir -p "$root/usr/"{bin,lib,sbin} "$apt/lists/partial" "$apt/cache/archives/partial"

if ! command -v qemu-aarch64-static >/dev/null; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "arm-test needs qemu-aarch64-static (Debian: qemu-user-static)" >&2
        exit 1
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends qemu-user-static
fi

# Packages of an empty Debian, with an apt state of its own: this host's is not touched.
if [ ! -x "$root/usr/bin/python3.11" ]; then
    : >"$apt/status"
    options=(-qq -o Dir::State="$apt" -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache"
        -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Debug::NoLocking=1 -o APT::Sandbox::User="$(id -un)")
    apt-get "${options[@]}" update
    apt-get "${options[@]}" install --yes --no-install-recommends --download-only python3.11 libstdc++6
    for name in bin lib sbin; do ln -sfn "usr/$name" "$root/$name"; done
    for package in "$apt"/cache/archives/*.deb; do
        dpkg-deb --fsys-tarfile "$package" | tar --extract --keep-directory-symlink --directory "$root"
    done
fi

if [ ! -d "$site-test" ]; then
    platforms=(--platform manylinux2014_aarch64)
    for glibc in $(seq 17 36); do platforms+=(--platform "manylinux_2_${glibc}_aarch64"); done
    pip=("$bin/python" -m pip install --quiet --disable-pip-version-check --no-compile --upgrade "${platforms[@]}"
        --python-version 3.11 --implementation cp --only-binary :all:)
    "${pip[@]}" --target "$site" --require-hashes --requirement requirements.lock
    "${pip[@]}" --target "$site-test.new" pytest pytest-asyncio httpx "hypothesis>=6.130" "scipy>=1.14"
    mv "$site-test.new" "$site-test" # packages in both are taken from the first
fi

# sys.executable, with which tests start processes.
cat >"$work/python" <<END
#!/bin/sh
export PYTHONHOME=$root/usr PYTHONPATH=$PWD:$site:$site-test PYTHONPYCACHEPREFIX=$work/pycache
exec env QEMU_CPU="\${QEMU_CPU:-max}" qemu-aarch64-static -L $root -0 $work/python $root/usr/bin/python3.11 "\$@"
END
chmod +x "$work/python"

# Compiled by this host into the tests' cache; kernels that a test defines are compiled under emulation.
for level in neon-i8mm neon-dot portable; do
    "$bin/python" -m tests.arm.cross "$work/cache/d/kernels" "$level"
done
exec "$bin/python" -m tests.arm.run "$work" "$@"
