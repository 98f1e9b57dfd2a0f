"""Finds a run from what a person typed, on both sides: in its cluster, and in its store."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from opd.errors import StoreError
from opd.runs.identity import RUN_FILE
from opd.store.access import StoreAddress, address_of
from opd.store.base import Store
from opdctl.errors import ToolError
from opdctl.kube.client import KubeApi, connect, is_configured
from opdctl.kube.errors import ClusterError
from opdctl.kube.run import ClusterRun, look
from opdctl.runs.targets import SPEC_SUFFIXES, STORE_VARIABLE, RunPlace, is_no_folder, open_place


@dataclass(frozen=True, kw_only=True)
class Found:
    """A run: what its cluster holds (None where none was asked), where its results lie (None before there are any)."""

    run_id: str
    api: KubeApi | None
    in_cluster: ClusterRun | None
    place: RunPlace | None
    notes: list[str] = field(default_factory=list)
    """What could not be asked, and why."""
    to_come: Store | None = None
    """Where its results will lie, which answers and has none yet."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """What was typed: a run id, and the store as far as the words say."""

    run_id: str
    store: str | StoreAddress | None = None
    is_place: bool = False
    """A path or URL of the run's own directory."""


def read_target(text: str) -> Target:
    """A name, the path or URL of a run's directory, or an experiment file.

    Raises:
        SpecError: the file is no usable spec.
    """
    if text.endswith(SPEC_SUFFIXES):
        from opd.config import dump_spec
        from opdctl.chart.values import load_one

        spec = load_one(text)
        return Target(run_id=spec.name, store=address_of(dump_spec(spec)))
    if "/" in text:
        parent, _, name = text.rstrip("/").rpartition("/")
        return Target(run_id=name, store=parent or "/", is_place=True)
    return Target(run_id=text)


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
    """Asks cluster and store for a run.

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
    place, to_come = _place(target, store, run, notes, timeout_s)
    if place is None and not (run is not None and (run.is_known or run.pods)) and not (may_be_unknown and api):
        if away is not None and not (store or os.environ.get(STORE_VARIABLE) or target.store):
            away.fix += ", or name the run's store with --store URL"
            raise away
        raise _unknown(target, api, store, notes)
    return Found(run_id=target.run_id, api=api, in_cluster=run, place=place, notes=notes, to_come=to_come)


def in_cluster(
    text: str, *, store: str | None, namespace: str | None, context: str | None, timeout_s: float
) -> tuple[KubeApi, Found]:
    """The run in its cluster, for commands that change it there.

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
    place, _ = _place(target, store, run, notes, timeout_s)
    return api, Found(run_id=target.run_id, api=api, in_cluster=run, place=place, notes=notes)


def _place(
    target: Target, store: str | None, run: ClusterRun | None, notes: list[str], timeout_s: float
) -> tuple[RunPlace | None, Store | None]:
    """Where the run's results lie, None where there are none yet or they cannot be read from here; and where they will."""
    at = _store(target, store, run, notes)
    if at is None:
        return None, None
    try:
        place = open_place(at, timeout_s=timeout_s).child(target.run_id)
        if place.exists(RUN_FILE):
            return RunPlace(run_id=target.run_id, store=place), None
    except StoreError as error:
        if run is None or not run.is_known:
            raise
        notes.append(f"the store was left out: {error}")
        return None, None
    if run is not None and run.is_known:
        notes.append(f"nothing in the store {place.url} yet: it appears with the first attempt")
        return None, place
    return None, None


def _store(target: Target, store: str | None, run: ClusterRun | None, notes: list[str]) -> str | StoreAddress | None:
    if target.is_place:
        return target.store
    given = store or os.environ.get(STORE_VARIABLE)
    if given:
        return given
    if run is not None and run.is_known:
        sent = run.store
        if sent is None or urlsplit(sent.url).scheme in ("", "file"):
            where = f" ({sent.url})" if sent else ""
            notes.append(f"its store{where} is a folder of the run's own volume and cannot be read from here")
            return None
        return sent
    return target.store


def _unknown(target: Target, api: KubeApi | None, store: str | None, notes: list[str]) -> ToolError:
    why = f" ({'; '.join(notes)})" if notes else ""
    places = []
    if api is not None:
        places.append(f"namespace {api.namespace}")
    at = target.store if target.is_place else store or os.environ.get(STORE_VARIABLE) or target.store
    url = at.url if isinstance(at, StoreAddress) else at
    if url:
        places.append(f"store {url}: {'there is no such folder' if is_no_folder(url) else f'it has no {RUN_FILE}'}")
    if not places:
        return ToolError(
            f"which store, or which cluster? A run is named by its id in one of them{why}",
            fix=f"give --store URL or set {STORE_VARIABLE}, give --namespace, or name its path, URL or experiment file",
            exit_code=2,
        )
    return ToolError(
        f"no run {target.run_id!r} in {' nor in '.join(places)}{why}",
        fix="`opdctl list --store URL` shows the runs of a store; a run appears there with its first attempt",
    )
