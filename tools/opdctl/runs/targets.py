"""The finder of runs: a name below a store or in a namespace, a run's own path or URL, or an experiment file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from opd.errors import StoreError
from opd.runs.identity import RUN_FILE
from opd.store.access import SILENCE_S, URL_FIX, URL_RULE, StoreAddress, address_of, is_usable, under
from opd.store.base import RetryPolicy, Store
from opd.store.opening import open_store
from opdctl.console import note
from opdctl.errors import EXIT_USAGE, ToolError, usage_error
from opdctl.kube.client import KubeApi, connect, is_configured
from opdctl.kube.errors import ClusterError
from opdctl.kube.run import ClusterRun, look, stores
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


@dataclass(frozen=True, kw_only=True)
class Target:
    """A run as it was typed: its id, and the store as far as the words say."""

    run_id: str
    store: str | StoreAddress | None = None
    default: str | None = None
    """The store of an experiment file that names none."""
    is_place: bool = False
    """A path or URL of the run's own directory."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """A run on both sides: its cluster (None where none was asked) and its results (None before there are any)."""

    run_id: str
    api: KubeApi | None
    in_cluster: ClusterRun | None
    place: RunPlace | None
    notes: list[str] = field(default_factory=list)
    """What could not be asked, and why."""


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


def read_target(text: str) -> Target:
    """Understand a name, the path or URL of a run's directory, or an experiment file.

    Raises:
        SpecError: the file is no usable spec.
    """
    if text.endswith(SPEC_SUFFIXES):
        from opd.config import dump_spec
        from opdctl.chart.values import load_one

        spec = load_one(text)
        return Target(run_id=spec.name, store=address_of(dump_spec(spec)), default=spec.store.url)
    if "/" in text:
        url = text.rstrip("/") if "://" in text else str(Path(text))
        parent, _, name = url.rpartition("/")
        return Target(run_id=name, store=parent or "/", is_place=True)
    return Target(run_id=text)


def _address(
    target: Target, store: str | None, sent: StoreAddress | None, *, is_named: bool
) -> str | StoreAddress | None:
    """Return the store of a run, None where nothing names one.

    Its own path and --store come first; then the experiment in a cluster that the words name, the file's own store,
    $OPDCTL_STORE, and the experiment in a cluster that nothing names.

    Args:
        sent: the store of the experiment in the cluster, where it can be read from here.
    """
    if target.is_place:
        return target.store
    return store or (sent if is_named else None) or target.store or os.environ.get(STORE_VARIABLE) or sent or None


def _readable(sent: StoreAddress | None) -> StoreAddress | None:
    """The store of an experiment in a cluster; None for a folder of the run's own volume."""
    return None if sent is None or urlsplit(sent.url).scheme in ("", "file") else sent


def locate(
    text: str,
    *,
    store: str | None,
    namespace: str | None,
    context: str | None,
    no_cluster: bool,
    timeout_s: float,
    may_be_unknown: bool = False,
) -> Found:
    """Ask cluster and store for one run.

    A cluster is asked where --namespace or --context names it, and for names and experiment files wherever a kubeconfig
    is set up; then it is no error if it does not answer.

    Raises:
        ToolError: neither side knows the run.
    """
    target = read_target(text)
    notes: list[str] = []
    api, run = None, None
    away: ClusterError | None = None
    is_named = namespace is not None or context is not None
    if not no_cluster and (is_named or (not target.is_place and is_configured())):
        try:
            api = connect(namespace=namespace, context=context)
            run = look(api, target.run_id)
        except ClusterError as error:
            if is_named:
                raise
            api, run, away = None, None, error
            notes.append(f"the cluster was left out: {error}")
    place = _place(target, store, run, notes, is_named=is_named, timeout_s=timeout_s)
    if place is None and not (run is not None and (run.is_known or run.pods)) and not (may_be_unknown and api):
        if away is not None and not (store or os.environ.get(STORE_VARIABLE) or target.store):
            away.fix += ", or name the run's store with --store URL"
            raise away
        raise _unknown(target, api, store, notes)
    return Found(run_id=target.run_id, api=api, in_cluster=run, place=place, notes=notes)


def in_cluster(
    text: str, *, store: str | None, namespace: str | None, context: str | None, timeout_s: float
) -> tuple[KubeApi, Found]:
    """Return the run in its cluster, for commands that change it there.

    Raises:
        ClusterUnreachable: no cluster answers.
        ToolError: it does not know the run.
    """
    target = read_target(text)
    api = connect(namespace=namespace, context=context)
    run = look(api, target.run_id)
    if not run.is_known and not run.pods:
        raise _unknown(Target(run_id=target.run_id), api, None, [])
    notes: list[str] = []
    place = _place(target, store, run, notes, is_named=True, timeout_s=timeout_s)
    return api, Found(run_id=target.run_id, api=api, in_cluster=run, place=place, notes=notes)


def _place(
    target: Target, store: str | None, run: ClusterRun | None, notes: list[str], *, is_named: bool, timeout_s: float
) -> RunPlace | None:
    """Return the place of the run's results, None where there are none yet or they cannot be read from here."""
    is_known = run is not None and run.is_known
    sent = run.store if run is not None and run.is_known else None
    at = _address(target, store, _readable(sent), is_named=is_named)
    if at is None:
        if is_known:
            where = f" ({sent.url})" if sent else ""
            notes.append(f"its store{where} is a folder of the run's own volume and cannot be read from here")
        return None
    try:
        place = open_place(at, timeout_s=timeout_s).child(target.run_id)
        if place.exists(RUN_FILE):
            return RunPlace(run_id=target.run_id, store=place)
    except StoreError as error:
        if not is_known:
            raise
        notes.append(f"the store was left out: {error}")
        return None
    if is_known:
        notes.append(f"nothing in the store {place.url} yet: it appears with the first attempt")
    return None


def _unknown(target: Target, api: KubeApi | None, store: str | None, notes: list[str]) -> ToolError:
    why = f" ({'; '.join(notes)})" if notes else ""
    places = [f"namespace {api.namespace}"] if api is not None else []
    if at := _address(target, store, None, is_named=False):
        url = at.url if isinstance(at, StoreAddress) else at
        places.append(f"store {url}: {_why_not(url)}")
    if not places:
        return ToolError(
            f"which store, or which cluster? A run is named by its id in one of them{why}",
            fix=f"give --store URL or set {STORE_VARIABLE}, give --namespace, or name its path, URL or experiment file",
            exit_code=EXIT_USAGE,
        )
    return ToolError(f"no run {target.run_id!r} in {' nor in '.join(places)}{why}", fix=_APPEARS)


_APPEARS = "`opdctl list --store URL` shows the runs of a store; a run appears there with its first attempt"


def find_runs(
    targets: Sequence[str],
    *,
    store: str | None,
    timeout_s: float,
    namespace: str | None = None,
    context: str | None = None,
) -> list[RunPlace]:
    """Return the runs that are meant, in the order of `targets`; every run of the store where none is named.

    Args:
        targets: as `read_target` takes them.
        store: `--store`; $OPDCTL_STORE by default, else what the runs' experiments in the namespace say.

    Raises:
        ToolError: a name without a store, or a run that is not there.
    """
    is_named = namespace is not None or context is not None
    read = [read_target(target) for target in targets]
    open_names = [target for target in read if not target.is_place and target.store is None]
    has_store = bool(store or os.environ.get(STORE_VARIABLE))
    sent: dict[str, StoreAddress] = {}
    if store is None and (is_named or not has_store) and (open_names or not targets):
        try:
            sent = _stores_in_cluster(namespace, context, is_named=is_named)
        except ClusterError as error:
            if is_named or not targets or not all(target.default for target in open_names):
                raise
            note(f"note: the cluster was left out: {error}")
    if not targets and sent:
        read = [Target(run_id=name) for name in sorted(sent)]
    elif not targets:
        return _all_runs(store or os.environ.get(STORE_VARIABLE) or "", timeout_s)
    opened: dict[str, Store] = {}
    places = []
    for target in read:
        at = _address(target, store, sent.get(target.run_id), is_named=is_named) or target.default or _no_store()
        root = opened.get(at) if isinstance(at, str) else None
        root = root or open_place(at, timeout_s=timeout_s)
        if isinstance(at, str):
            opened[at] = root
        places.append(RunPlace(run_id=target.run_id, store=root.child(target.run_id)))
    if not targets:
        return places
    are_runs = in_threads(lambda place: place.store.exists(RUN_FILE), places, num_threads=NUM_THREADS)
    for place, is_run in zip(places, are_runs, strict=True):
        if not is_run:
            parent = place.store.url.rpartition("/")[0]
            raise ToolError(f"no run {place.run_id!r} at {place.store.url}: {_why_not(parent)}", fix=_APPEARS)
    return places


def find_run(
    target: str, *, store: str | None, timeout_s: float, namespace: str | None = None, context: str | None = None
) -> RunPlace:
    """Return the one run that is meant."""
    return find_runs([target], store=store, timeout_s=timeout_s, namespace=namespace, context=context)[0]


def _stores_in_cluster(namespace: str | None, context: str | None, *, is_named: bool) -> dict[str, StoreAddress]:
    """Run id -> store of the namespace's experiments, as far as it can be read from here."""
    if not is_named and not is_configured():
        return {}
    found = stores(connect(namespace=namespace, context=context))
    return {run_id: at for run_id, sent in found.items() if (at := _readable(sent)) is not None}


def _no_store() -> str:
    raise usage_error(
        "which store? A run is named by its id below a store",
        fix=f"give --store URL, set {STORE_VARIABLE}, or name the run by its path, its URL or its experiment file",
    )


def _all_runs(url: str, timeout_s: float) -> list[RunPlace]:
    root = open_place(url or _no_store(), timeout_s=timeout_s)
    if _is_no_folder(url):
        raise ToolError(
            f"store {url}: there is no such folder", fix="correct --store; a run makes it with its first attempt"
        )
    return [RunPlace(run_id=name, store=root.child(name)) for name in root.children("")]


def _why_not(url: str) -> str:
    return f"there is no folder {url}" if _is_no_folder(url) else f"it has no {RUN_FILE}"


def _is_no_folder(url: str) -> bool:
    """Return whether a store on this machine is not there."""
    path = url.removeprefix("file://")
    return "://" not in path and not Path(path or "/").is_dir()
