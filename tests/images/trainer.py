"""`python -m tests.images.trainer`: builds images/trainer on a debootstrapped base, checks it from inside, writes images/RESULTS.md."""

import argparse
import json
import sys
import time
from typing import Any

from tests.e2e.cluster.buildah import ROOT, SUITE, Buildah, ImageError
from tests.results import write_results

import gotools

REF = "localhost/opd-trainer:check"
RESULTS = ROOT / "images" / "RESULTS.md"
SBOM = ROOT / "build" / "trainer.cdx.json"
_CHECK_TIMEOUT_S = 3600
FILES = ("manifests/experiments", "src/opd/quickstart")
_HEAD = """# images/trainer: the last run of `make image-trainer-check`

Written by the run. {num_kept} of {num} checks held; built in {build_min:.0f} minutes, checked in {check_min:.0f}, beside other work.
Uncompressed, {total:.2f} GB, of which {heavy:.2f} GB are the layer of heavy packages.

Built by {buildah} from images/trainer/Dockerfile as it is, on **a Debian {suite} made by debootstrap instead of the Dockerfile's own base**
(`--build-arg BASE`), which is in a registry: what NVIDIA's base image adds was not there, nor a GPU. CUDA's libraries and compiler come
with the locked packages. {num_packages} packages are in its bill of materials (CycloneDX, by syft)."""


def main() -> int:
    """Run the command line; returns 0 if every check held."""
    parser = argparse.ArgumentParser(prog="python -m tests.images.trainer", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="keep the image and its layers for the next build (35 GB)")
    args = parser.parse_args()
    begin = time.monotonic()
    say = lambda line: print(f"{time.monotonic() - begin:6.0f} s  {line}", flush=True)  # noqa: E731
    try:
        gotools.install("syft")
        SBOM.parent.mkdir(exist_ok=True)
        with Buildah("trainer", is_kept=args.keep) as buildah:
            buildah.build("trainer", REF, say, "--sbom", str(SBOM))
            built_s = time.monotonic() - begin
            layers = layer_sizes(buildah)
            container = buildah.run("from", REF).strip()
            say("checks inside the image")
            rows = check(buildah, container)
            version = buildah.run("--version").partition(" (")[0].strip()
    except (ImageError, gotools.ToolError) as error:
        print(f"image-trainer-check: {error}", file=sys.stderr)
        return 1
    for row in rows:
        say(f"{'ok    ' if row['ok'] else 'BROKEN'}  {row['check']}: {row['observed']}")
    for what, size in layers:
        say(f"{size / 1e6:8.1f} MB  {what}")
    head = _HEAD.format(
        num_kept=sum(row["ok"] for row in rows),
        num=len(rows),
        build_min=built_s / 60,
        check_min=(time.monotonic() - begin - built_s) / 60,
        total=sum(size for _, size in layers) / 1e9,
        heavy=sum(size for what, size in layers if "/opt/heavy" in what) / 1e9,
        buildah=version,
        suite=SUITE,
        num_packages=sum(item["type"] == "library" for item in json.loads(SBOM.read_text())["components"]),
    )
    cells = ((row["check"], row["observed"], f"{row['seconds']:.0f}", "yes" if row["ok"] else "**no**") for row in rows)
    write_results(RESULTS, head, ("check", "observed", "s", "held"), cells)
    say(f"{RESULTS.relative_to(ROOT)} and {SBOM.relative_to(ROOT)} written")
    return 0 if all(row["ok"] for row in rows) else 1


def check(buildah: Buildah, container: str) -> list[dict[str, Any]]:
    """Return what images/trainer/check.py prints inside the image, as the image's own user."""
    mounts = [
        *("--volume", f"{ROOT}/images/trainer/check.py:/check/check.py:ro"),
        # The quickstarts' files are links to files of the package.
        *(word for place in FILES for word in ("--volume", f"{ROOT}/{place}:/check/{place}:ro")),
    ]
    command = ["python", "/check/check.py", f"/check/{FILES[0]}"]
    out = buildah.run("run", *mounts, container, "--", *command, timeout_s=_CHECK_TIMEOUT_S, codes=(0, 1))
    return [json.loads(line) for line in out.splitlines()]


def layer_sizes(buildah: Buildah) -> list[tuple[str, int]]:
    """Return the command and the bytes of each layer, the base first."""
    described = json.loads(buildah.run("inspect", "--type", "image", REF))
    made_by = [item.get("created_by", "") for item in described["OCIv1"]["history"] if not item.get("empty_layer")]
    storage = {item["id"]: item for item in json.loads((buildah.root / "overlay-layers/layers.json").read_text())}
    images = json.loads((buildah.root / "overlay-images/images.json").read_text())
    at, sizes = next(item["layer"] for item in images if REF in item.get("names", ())), []
    while at:
        sizes.append(storage[at].get("diff-size", 0))
        at = storage[at].get("parent", "")
    names = [f"base: Debian {SUITE}", *(what.removeprefix("/bin/sh -c ")[:100] for what in made_by[1:])]
    return list(zip(names, reversed(sizes), strict=True))


if __name__ == "__main__":
    sys.exit(main())
