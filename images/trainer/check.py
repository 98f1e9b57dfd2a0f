"""Checks of a built trainer image without a GPU; they run inside it and need nothing else.

    docker run --rm -i IMAGE python - < images/trainer/check.py

Prints one JSON object a check ({"check", "ok", "observed", "seconds"}), and ends with 1 if one did not hold. Experiment files in folders
given as arguments (`python - FOLDER`) are looked at too.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

# Distribution -> modules that a run imports before its first step: the driver's, the worker's and the rollout server's.
IMPORTS = {
    "opd": ("opd.launch", "opd.main_opd", "opd.pods.submit", "opdctl.cli"),
    "verl": ("verl.trainer.main_ppo", "verl.workers.rollout.vllm_rollout.vllm_async_server"),
    "ray": ("ray", "ray.dashboard.dashboard"),
    "torch": ("torch", "torch.distributed.fsdp"),
    "transformers": ("transformers.models.qwen3.modeling_qwen3",),
    "vllm": ("vllm", "vllm.v1.engine.async_llm"),
    "tensordict": ("tensordict",),
    "triton": ("triton",),
    "flashinfer-python": ("flashinfer",),
    "xgrammar": ("xgrammar",),
    "math-verify": ("math_verify",),
    "pyarrow": ("pyarrow.parquet",),
    "wandb": ("wandb",),
    "mlflow-skinny": ("mlflow",),
    "kubernetes": ("kubernetes.client",),
    "s3fs": ("s3fs",),
    "gcsfs": ("gcsfs",),
    "adlfs": ("adlfs",),
}
SECRET_FILES = {".netrc", ".git-credentials", ".pypirc", "pip.conf", "uv.toml", "id_rsa", "id_ed25519", "kubeconfig"}
SECRET_NAMES = re.compile(r"TOKEN|SECRET|PASSWORD|CREDENTIAL|API_KEY|_PROXY$|SSL_CERT|CA_BUNDLE", re.IGNORECASE)
SM = "9.0a"  # Hopper, what the kernels are compiled for here


class BrokenError(Exception):
    """A check that does not hold; the text is what was seen."""


def user() -> str:
    """Check that the user is not root and can write its home."""
    if os.getuid() == 0:
        raise BrokenError("runs as root")
    Path.home().joinpath(".written").touch()
    return f"uid {os.getuid()}, gid {os.getgid()}, HOME {Path.home()} writable"


def secrets() -> str:
    """Check that no file is writable by all, and that no file or variable holds credentials."""
    num, open_to_all, named = 0, [], []
    for path, mode in files(Path("/")):
        num += 1
        is_shared = stat.S_ISDIR(mode) and mode & stat.S_ISVTX  # as /tmp
        if mode & stat.S_IWOTH and not stat.S_ISLNK(mode) and not is_shared:
            open_to_all.append(str(path))
        if path.name in SECRET_FILES:
            named.append(str(path))
    variables = [name for name in os.environ if SECRET_NAMES.search(name)]
    if open_to_all or named or variables:
        raise BrokenError(f"writable by all: {open_to_all[:5]}; credentials: {named[:5]}; variables: {variables}")
    return f"{num} files: none writable by all, no credentials among them or in the environment"


def files(root: Path) -> Iterator[tuple[Path, int]]:
    """Yield every file and folder below with its mode, without the kernel's."""
    for folder, folders, names in os.walk(root):
        if folder == "/":
            folders[:] = [name for name in folders if name not in {"dev", "proc", "sys"}]
        for name in (*folders, *names):
            path = Path(folder, name)
            yield path, path.lstat().st_mode


def imported(distribution: str, modules: tuple[str, ...]) -> Callable[[], str]:
    """Return a check that imports modules in a process of their own and gives the distribution's version."""

    def check() -> str:
        run(sys.executable, "-c", f"import {', '.join(modules)}")
        return f"{importlib.metadata.version(distribution)}: {', '.join(modules)}"

    return check


def bytecode() -> str:
    """Check that every module has its bytecode, because a start is imports."""
    num, without = 0, []
    for path, _ in (item for root in ("/opt/heavy", "/opt/venv", "/opt/opd") for item in files(Path(root))):
        if path.suffix == ".py":
            num += 1
            if not Path(importlib.util.cache_from_source(str(path))).is_file():
                without.append(str(path))
    if len(without) > num // 100:  # packages ship templates and other Pythons' files, which do not compile
        raise BrokenError(f"{len(without)} of {num} modules have none: {without[:5]}")
    return f"{num - len(without)} of {num} modules"


def launcher() -> str:
    """Run the launcher, the tool and Ray's command."""
    run(sys.executable, "-m", "opd.launch", "--help")
    run("opdctl", "--help")
    return run("ray", "--version").strip()


def experiments() -> str:
    """Turn every experiment in the folders on the command line into the trainer's settings; fetch no model."""
    found = sorted(path for folder in sys.argv[1:] for path in Path(folder).glob("*.yaml"))
    specs = [
        path for path in found if not re.search("^matrix:", path.read_text(), re.MULTILINE)
    ]  # the tool's, cell by cell
    counts = [run(sys.executable, "-m", "opd.launch", str(path), "--dry-run").count("\n") for path in specs]
    for path in specs:
        if path.stem == "quickstart":  # its models come with the package
            run(sys.executable, "-m", "opd.launch", str(path), "--plan")
    return ", ".join(f"{path.stem} ({num})" for path, num in zip(specs, counts, strict=True)) + " settings"


def ray_task() -> str:
    """Start a Ray of its own, as the pods do, and run a task."""
    code = (
        "import os, ray; ray.init(num_cpus=1, include_dashboard=False, object_store_memory=80_000_000);"
        "print(ray.get(ray.remote(lambda: os.getuid()).remote()))"
    )
    return f"a task ran as uid {run(sys.executable, '-c', code).split()[-1]}"


def compiler() -> str:
    """Compile and run a C and a C++ program."""
    for command, source in (("cc", "c"), ("c++", "c++")):
        run(
            command,
            "-x",
            source,
            "-o",
            "hello",
            "-",
            given='#include <stdio.h>\nint main(void) { return !puts("hi"); }\n',
        )
        run("./hello")
    return f"{run('cc', '--version').splitlines()[0]}; Python.h in {sysconfig.get_path('include')}"


def triton_builds() -> str:
    """Build Triton's launcher of the CUDA driver by its own helper, and compile a kernel to a cubin."""
    import triton.backends.nvidia
    from triton.runtime.build import _build

    backend = Path(triton.backends.nvidia.__file__).parent
    stubs = f"{os.environ['CUDA_HOME']}/lib/stubs"
    built = _build("cuda_utils", str(backend / "driver.c"), ".", [stubs], [str(backend / "include")], ["cuda"], [])
    Path("kernel.py").write_text(
        "import triton, triton.language as tl\n"
        "from triton.backends.compiler import GPUTarget\n"
        "@triton.jit\n"
        "def double(x, BLOCK: tl.constexpr):\n"
        "    at = x + tl.arange(0, BLOCK)\n"
        "    tl.store(at, 2 * tl.load(at))\n"
        "source = triton.compiler.ASTSource(double, {'x': '*fp32', 'BLOCK': 'constexpr'}, {'BLOCK': 64})\n"
        "print(len(triton.compile(source, target=GPUTarget('cuda', 90, 32)).asm['cubin']))\n"
    )
    size = run(sys.executable, "kernel.py").split()[-1]
    return f"{Path(built).name} linked; a kernel for sm_90: {size} bytes of cubin"


def inductor() -> str:
    """Run torch.compile, which writes and builds C++."""
    code = "import torch; print(torch.compile(lambda x: (x.sin() + 1).sum())(torch.zeros(64)).item())"
    return f"torch.compile on the CPU: {run(sys.executable, '-c', code).split()[-1]}"


def flashinfer_builds() -> str:
    """Compile CUDA for Hopper by FlashInfer and link it against the locked packages' libraries, as a run does."""
    code = "from flashinfer.jit.page import gen_page_module as of; spec = of(); spec.build(verbose=True); print(spec.jit_library_path)"
    built = run(sys.executable, "-c", code, FLASHINFER_CUDA_ARCH_LIST=SM).split()[-1]
    nvcc = re.search(r"release ([\d.]+)", run(f"{os.environ['CUDA_HOME']}/bin/nvcc", "--version"))
    return f"nvcc {nvcc and nvcc[1]}: {Path(built).name}, {Path(built).stat().st_size >> 10} KiB for sm_{SM.replace('.', '')}"


def cuda() -> str:
    """Load CUDA's libraries of the locked packages without a driver."""
    code = (
        "import torch; assert not torch.cuda.is_available();"
        "print(torch.version.cuda, torch.backends.cudnn.version(), '.'.join(map(str, torch.cuda.nccl.version())))"
    )
    version, cudnn, nccl = run(sys.executable, "-c", code).split()[-3:]
    return f"CUDA {version}, cuDNN {cudnn}, NCCL {nccl}; no GPU seen"


def infiniband() -> str:
    """Check that the verbs library that NCCL opens finds its providers, also Mellanox's."""
    verbs = ctypes.CDLL("libibverbs.so.1", use_errno=True)
    verbs.ibv_get_device_list(None)  # reads the configuration and opens each provider; there is no device here
    ctypes.CDLL("librdmacm.so.1")
    ctypes.CDLL("libmlx5.so.1")
    providers = sorted(path.stem for path in Path("/etc/libibverbs.d").glob("*.driver"))
    objects = {path.name.partition("-rdmav")[0] for path in Path("/usr/lib").glob("*/libibverbs/*-rdmav*.so")}
    if "mlx5" not in providers or "libmlx5" not in objects:
        raise BrokenError(f"no mlx5 among {providers} and {sorted(objects)}: is ibverbs-providers installed?")
    return f"libibverbs, librdmacm and {len(objects)} providers, mlx5 among them; not in it: AWS's libfabric and NCCL plug-in (EFA)"


def run(*command: str, given: str = "", **environment: str) -> str:
    """Run a command and return its output.

    Raises:
        BrokenError: it failed.
    """
    done = subprocess.run(
        command,
        input=given,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    if done.returncode:
        raise BrokenError(
            f"`{' '.join(command)[:200]}` ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-1500:]}"
        )
    return done.stdout


def checks() -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield name and check, in order."""
    yield "user", user
    yield "no secrets", secrets
    for distribution, modules in IMPORTS.items():
        yield f"import {distribution}", imported(distribution, modules)
    yield "bytecode", bytecode
    yield "launcher", launcher
    if sys.argv[1:]:
        yield "experiments", experiments
    yield "Ray", ray_task
    yield "CUDA's libraries", cuda
    yield "InfiniBand", infiniband
    yield "C compiler", compiler
    yield "Triton", triton_builds
    yield "Inductor", inductor
    yield "FlashInfer", flashinfer_builds


def main() -> int:
    """Run every check in a folder of its own, print what each saw, and return 1 if one did not hold."""
    scratch, is_whole = tempfile.mkdtemp(), True
    os.chdir(scratch)
    for name, check in checks():
        begin = time.monotonic()
        try:
            ok, observed = True, check()
        except (BrokenError, OSError, ImportError, KeyError, subprocess.TimeoutExpired) as error:
            ok, observed = False, f"{type(error).__name__}: {error}"
        is_whole = is_whole and ok
        row = {"check": name, "ok": ok, "observed": observed, "seconds": round(time.monotonic() - begin, 1)}
        print(json.dumps(row), flush=True)
    shutil.rmtree(scratch, ignore_errors=True)
    return 0 if is_whole else 1


if __name__ == "__main__":
    sys.exit(main())
