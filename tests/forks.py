"""Python programs in forks of one process that has made their imports: a start costs 50 ms, not seconds."""

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Code for `warm`: a dry run has the imports of each start but the trainer's; the tool's command line has its own.
DRY_RUN = f"""import runpy, sys
sys.argv = ["opd.launch", {str(ROOT / "manifests/experiments/quickstart.yaml")!r}, "--dry-run"]
runpy.run_module("opd.launch", run_name="__main__")"""
# Reads one call a line: the program's words, its folder, its variables and the folder of what it prints.
_SERVER = """
import contextlib, gc, io, json, os, runpy, sys, traceback
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    exec(sys.argv[1])
gc.freeze()
for line in sys.stdin:
    (how, program, *words), folder, variables, printed = json.loads(line)
    if (child := os.fork()) == 0:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(variables)
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            os.dup2(os.open(os.path.join(printed, name), os.O_RDWR | os.O_CREAT), number)
        sys.stdin, sys.argv, sys.path[0] = open(0), ["-c", *words], ""
        code = 0
        try:
            if how == "-m":
                runpy.run_module(program, run_name="__main__", alter_sys=True)
            else:
                exec(program, {"__name__": "__main__"})
        except SystemExit as end:
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class _Forks:
    """A process that forks once for each program."""

    def __init__(self, warm: str) -> None:
        paths = [str(ROOT / "src"), str(ROOT / "tools"), str(ROOT)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVER, warm],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        atexit.register(self._end)

    def _end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()

    def run(self, words: Sequence[str], folder: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.TemporaryDirectory() as printed:
            self._process.stdin.write(json.dumps([[*words], str(folder), dict(env), printed]) + "\n")
            self._process.stdin.flush()
            code = int(self._process.stdout.readline())
            out, err = ((Path(printed) / name).read_text() for name in ("stdout", "stderr"))
        return subprocess.CompletedProcess([*words], code, out, err)


@functools.cache
def _forks(warm: str) -> _Forks:
    return _Forks(warm)


def run_forked(
    warm: str, *words: object, cwd: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `python -m MODULE ...` or `python -c CODE ...` to its end and return what it printed.

    Args:
        warm: Python code that makes the imports; calls with the same code share one process.
        words: what follows `python` on the command line.
        cwd: the program's folder.
        env: all of the program's variables; None means this process's own.
    """
    return _forks(warm).run([str(word) for word in words], cwd, os.environ if env is None else env)
