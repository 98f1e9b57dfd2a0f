"""What the shell offers for a half-typed word: names of runs, from cluster and store, and keys of the experiment file.

Names are kept on disk: a moment later, and where cluster or store take too long, they are what was found last.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

# A person waits at the prompt: so long where names are known from before, and longer the first time.
PATIENCE_S = 1.0
FIRST_S = 4.0
# For the store where the cluster took all of it; a deadline of 0 would be none.
LEAST_S = 0.05
# Who completes one line asks many times: nobody is asked again for this long.
FRESH_S = 30.0


def complete_run(ctx: typer.Context, incomplete: str) -> list[str]:
    """Runs of the cluster and the store that the words before name, as `status` would look for them."""
    found: list[str] = []
    began_s = time.monotonic()
    for source in (_in_cluster, _in_store):
        found += _names(source, ctx, began_s)
    return [name for name in dict.fromkeys(sorted(found)) if name.startswith(incomplete)]


def complete_key(incomplete: str) -> list[str]:
    """Keys of the experiment file, of every kind."""
    from opdctl.chart.explain import paths

    return [path for path in paths() if path.startswith(incomplete)]


def complete_set(incomplete: str) -> list[str]:
    """The same, ready for a value."""
    return [f"{path}=" for path in complete_key(incomplete)]


Run = Annotated[str, typer.Argument(metavar="RUN", help="The run.", autocompletion=complete_run)]


def _names(source: Callable[[typer.Context], Iterable[str]], ctx: typer.Context, began_s: float) -> list[str]:
    """What the source says within the person's patience since `began_s` (monotonic), else what it said last."""
    kept = _kept(source.__name__, ctx)
    known: list[str] | None = None
    with contextlib.suppress(OSError, ValueError):
        known = [str(name) for name in json.loads(kept.read_bytes())]
        if 0 <= time.time() - kept.stat().st_mtime < FRESH_S:
            return known
    found = _quietly(partial(source, ctx), began_s + (FIRST_S if known is None else PATIENCE_S))
    if found is None:
        return known or []
    with contextlib.suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        partly = kept.with_suffix(f".{os.getpid()}")
        partly.write_text(json.dumps(found))
        partly.replace(kept)
    return found


def _kept(source: str, ctx: typer.Context) -> Path:
    """Where the names are kept of the cluster or the store that the line, the shell and the kubeconfig name."""
    from opdctl.kube.client import kubeconfigs
    from opdctl.runs.cache import default_folder

    said = [ctx.params.get(name) for name in ("namespace", "context", "no_cluster", "store")]
    shell = [
        f"{name}={value}"
        for name, value in os.environ.items()
        if name.startswith(("OPDCTL", "AWS_ENDPOINT", "AWS_PROFILE", "KUBE", "PWD"))
    ]
    contexts = [file.stat().st_mtime_ns for file in kubeconfigs()]  # another may be in use since
    words = json.dumps([source, *said, *sorted(shell), *contexts])
    return default_folder() / "names" / f"{hashlib.sha256(words.encode()).hexdigest()[:32]}.json"


def _in_cluster(ctx: typer.Context) -> Iterator[str]:
    from opdctl.kube.client import connect, is_configured
    from opdctl.kube.run import experiments

    namespace, context = ctx.params.get("namespace"), ctx.params.get("context")
    if not ctx.params.get("no_cluster") and (namespace or context or is_configured()):
        yield from experiments(connect(namespace=namespace, context=context))


def _in_store(ctx: typer.Context) -> Iterator[str]:
    from opdctl.runs.targets import STORE_VARIABLE, open_place

    if url := ctx.params.get("store") or os.environ.get(STORE_VARIABLE):
        yield from open_place(url, timeout_s=3 * FIRST_S).children("")  # a third of it is for one try


def _quietly(look: Callable[[], Iterable[str]], end_s: float) -> list[str] | None:
    """What is found until `end_s` (monotonic), when the person's patience is over; None, without a word, where anything is
    wrong, for nobody asked yet."""
    from opdctl.console import CommandTimeout, deadline

    try:
        with contextlib.redirect_stderr(io.StringIO()), deadline(max(end_s - time.monotonic(), LEAST_S)):
            return list(look())
    except (Exception, CommandTimeout):  # noqa: BLE001 - a shell would print it into the line that is being typed
        return None
