"""Understands what a person types for a run: a name below the store, a run's own path or URL, or an experiment file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from opd.runs.identity import RUN_FILE
from opd.store.access import SILENCE_S, URL_FIX, URL_RULE, StoreAddress, address_of, is_usable, under
from opd.store.base import RetryPolicy, Store
from opd.store.opening import open_store
from opdctl.errors import ToolError, usage_error
from opdctl.runs.threads import in_threads

STORE_VARIABLE = "OPDCTL_STORE"
SPEC_SUFFIXES = (".yaml", ".yml", ".json")
# A person waits in front of the screen: shorter than the trainer's patience, unless --timeout gives it long.
PATIENCE_S = 5.0
MAX_PATIENCE_S = SILENCE_S
# Each waits for one small answer.
NUM_THREADS = 16


@dataclass(frozen=True, kw_only=True)
class RunPlace:
    """One run: its id and the store rooted at its directory."""

    run_id: str
    store: Store


def open_place(at: str | StoreAddress, *, timeout_s: float) -> Store:
    """The store behind a path or URL, as patient as the command may be; the shell's variables win over an experiment's."""
    url, variables = at if isinstance(at, StoreAddress) else (at, {})
    check_url(url)
    patience_s = min(timeout_s / 3, max(PATIENCE_S, timeout_s / 60), MAX_PATIENCE_S)
    policy = RetryPolicy(max_elapsed_s=patience_s, silence_s=patience_s)
    return open_store(url, policy=policy, environment=under(variables, os.environ))


def check_url(url: str) -> None:
    """Refuse a store that no run may have, before a folder of that name is made.

    Raises:
        ToolError: it carries credentials, or is meant as a URL and is none.
    """
    if urlsplit(url).password is not None or "@" in urlsplit(url).netloc:
        raise usage_error(
            f"store {urlsplit(url).scheme}://{urlsplit(url).hostname or ''}...: a store URL carries no credentials",
            fix="give them in the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL)",
        )
    if not is_usable(url):
        raise usage_error(f"store {url}: {URL_RULE}", fix=URL_FIX)


def find_runs(
    targets: Sequence[str],
    *,
    store: str | None,
    timeout_s: float,
    namespace: str | None = None,
    context: str | None = None,
) -> list[RunPlace]:
    """The runs that are meant, in the order of `targets`; every run of the store where none is named.

    Args:
        targets: names, paths or URLs of run directories, or experiment files (their `store.url` and `name`).
        store: `--store`; $OPDCTL_STORE by default, else what the runs' experiments in the namespace say.

    Raises:
        ToolError: a name without a store, or a run that is not there.
    """
    url = store or os.environ.get(STORE_VARIABLE) or None
    in_cluster: dict[str, StoreAddress] = {}
    is_named = namespace is not None or context is not None
    if store is None and (is_named or url is None) and any("/" not in item for item in targets or [""]):
        is_needed = url is None and any(
            "/" not in item and not item.endswith(SPEC_SUFFIXES) for item in targets or [""]
        )
        in_cluster = _stores_in_cluster(namespace, context, is_named=is_named, is_needed=is_needed)
    if not targets and in_cluster:
        names = sorted(in_cluster)
        return [
            RunPlace(run_id=name, store=open_place(in_cluster[name], timeout_s=timeout_s).child(name)) for name in names
        ]
    if not targets:
        return _all_runs(_required(url), timeout_s)
    root: Store | None = None
    places = []
    for target in targets:
        if target.endswith(SPEC_SUFFIXES):
            places.append(_of_experiment(target, store, timeout_s))
        elif "/" in target:
            places.append(_at(target, timeout_s))
        elif target in in_cluster:
            own = open_place(in_cluster[target], timeout_s=timeout_s)
            places.append(RunPlace(run_id=target, store=own.child(target)))
        else:
            root = root or open_place(_required(url), timeout_s=timeout_s)
            places.append(RunPlace(run_id=target, store=root.child(target)))
    are_runs = in_threads(lambda place: place.store.exists(RUN_FILE), places, num_threads=NUM_THREADS)
    for place, is_run in zip(places, are_runs, strict=True):
        if not is_run:
            parent = place.store.url.rpartition("/")[0]
            why = f"there is no folder {parent}" if is_no_folder(parent) else f"it has no {RUN_FILE}"
            raise ToolError(
                f"no run {place.run_id!r} at {place.store.url}: {why}",
                fix="`opdctl list --store URL` shows the runs of a store; a run appears with its first attempt",
            )
    return places


def find_run(
    target: str, *, store: str | None, timeout_s: float, namespace: str | None = None, context: str | None = None
) -> RunPlace:
    """The one run that is meant."""
    return find_runs([target], store=store, timeout_s=timeout_s, namespace=namespace, context=context)[0]


def _stores_in_cluster(
    namespace: str | None, context: str | None, *, is_named: bool, is_needed: bool
) -> dict[str, StoreAddress]:
    """Run id -> store of the namespace's experiments; a store on a run's own volume cannot be read from here."""
    from opdctl.console import note
    from opdctl.kube.client import connect, is_configured
    from opdctl.kube.errors import ClusterError
    from opdctl.kube.run import stores

    if not is_named and not is_configured():
        return {}
    try:
        found = stores(connect(namespace=namespace, context=context))
    except ClusterError as error:
        if is_named or is_needed:
            raise
        note(f"note: the cluster was left out: {error}")
        return {}
    return {run_id: at for run_id, at in found.items() if urlsplit(at.url).scheme not in ("", "file")}


def _required(url: str | None) -> str:
    if not url:
        raise usage_error(
            "which store? A run is named by its id below a store",
            fix=f"give --store URL, set {STORE_VARIABLE}, or name the run by its path, its URL or its experiment file",
        )
    return url


def _of_experiment(file: str, store: str | None, timeout_s: float) -> RunPlace:
    from opd.config import dump_spec
    from opdctl.chart.values import load_one

    spec = load_one(file)
    root = open_place(store or address_of(dump_spec(spec)) or spec.store.url, timeout_s=timeout_s)
    return RunPlace(run_id=spec.name, store=root.child(spec.name))


def _at(target: str, timeout_s: float) -> RunPlace:
    url = target.rstrip("/") if "://" in target else str(Path(target))
    return RunPlace(run_id=url.rpartition("/")[2], store=open_place(url, timeout_s=timeout_s))


def _all_runs(url: str, timeout_s: float) -> list[RunPlace]:
    root = open_place(url, timeout_s=timeout_s)
    if is_no_folder(url):
        raise ToolError(
            f"store {url}: there is no such folder", fix="correct --store; a run makes it with its first attempt"
        )
    return [RunPlace(run_id=name, store=root.child(name)) for name in root.children("")]


def is_no_folder(url: str) -> bool:
    """Whether a store on this machine is not there."""
    path = url.removeprefix("file://")
    return "://" not in path and not Path(path or "/").is_dir()
