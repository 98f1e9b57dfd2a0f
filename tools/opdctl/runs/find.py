"""The finder of runs: a name in a store or a namespace, or the path or URL of a run's own directory."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from opd.errors import StoreError
from opd.experiment.errors import nearest
from opd.runs.identity import RUN_FILE
from opd.store.access import URL_FIX, URL_RULE, StoreAddress, address_of, is_usable, under
from opd.store.base import RetryPolicy, Store
from opd.store.remote import open_store
from opdctl.console import ToolError, usage_error
from opdctl.kube.client import ClusterError, KubeApi, connect, kubeconfigs
from opdctl.kube.rayjob import ClusterRun, experiments, look

STORE_VARIABLE = "OPDCTL_STORE"
DEFAULT_STORE = "outputs/store"
# A user waits: shorter than the trainer's patience.
POLICY = RetryPolicy(max_elapsed_s=10.0)
_APPEARS = "`opdctl list` shows the runs; a run appears in a store with its first attempt"


@dataclass(frozen=True, kw_only=True)
class RunPlace:
    """One run: its id and the store rooted at its directory."""

    run_id: str
    store: Store


@dataclass(frozen=True, kw_only=True)
class Found:
    """A run on both sides: its cluster (None without one) and its results (None before there are any)."""

    run_id: str
    api: KubeApi | None
    in_cluster: ClusterRun | None
    place: RunPlace | None
    notes: list[str] = field(default_factory=list)
    """Stores and clusters that could not be read, and the reasons."""


def open_place(at: str | StoreAddress) -> Store:
    """Open the store of a path or URL; the shell's variables win over an experiment's."""
    url, variables = at if isinstance(at, StoreAddress) else (at, {})
    if "@" in urlsplit(url).netloc:
        raise usage_error(
            f"store {urlsplit(url).scheme}://{urlsplit(url).hostname or ''}...: a store URL carries no credentials",
            fix="give them in the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL)",
        )
    if not is_usable(url):
        raise usage_error(f"store {url}: {URL_RULE}", fix=URL_FIX)
    return open_store(url, policy=POLICY, environment=under(variables, os.environ))


def _read(text: str) -> tuple[str, str]:
    """Return the name of a run, and its store where the user wrote a path or URL."""
    if "/" not in text:
        return text, ""
    parent, _, name = (text.rstrip("/") if "://" in text else str(Path(text))).rpartition("/")
    return name, parent or "/"


class Finder:
    """The finder for one command line.

    The store of a run comes from its path, --store, its experiment in the namespace, $OPDCTL_STORE, or ./outputs/store.
    --store without --namespace reads the store only; a command that reads results asks the cluster for a store alone.
    """

    def __init__(self, *, store: str | None, namespace: str | None, context: str | None) -> None:
        self.store, self.namespace, self.context = store, namespace, context
        self.shell_store = os.environ.get(STORE_VARIABLE) or None
        self.is_named = namespace is not None or context is not None
        self.has_cluster = self.is_named or (store is None and bool(kubeconfigs()))
        self.asks_for_stores = store is None and (self.is_named or (self.has_cluster and not self.shell_store))
        self._roots: dict[str, Store] = {}

    def connect(self) -> KubeApi:
        return connect(namespace=self.namespace, context=self.context)

    def locate(self, text: str) -> Found:
        """Read one run from cluster and store; an unreachable cluster that the user did not name is left out."""
        (run_id, parent), notes = _read(text), list[str]()
        api, run = None, None
        if self.is_named or (self.has_cluster and not parent):
            try:
                api = self.connect()
                run = look(api, run_id)
            except ClusterError as error:
                if self.is_named or not (self.shell_store or Path(DEFAULT_STORE).is_dir()):
                    error.fix += ", or name the run's store with --store URL"
                    raise
                api = None
                notes.append(f"the cluster was left out: {error}")
        place = self._place(run_id, parent, run, notes)
        if place is None and (run is None or not (run.is_known or run.pods)):
            places = [f"namespace {api.namespace}{_near(run_id, experiments(api))}"] if api is not None else []
            places += [_in_store(root, run_id)] if (root := self._root(parent)) else []
            why = f" ({'; '.join(notes)})" if notes else ""
            raise ToolError(f"no run {run_id!r} in {' nor in '.join(places)}{why}", fix=_APPEARS)
        return Found(run_id=run_id, api=api, in_cluster=run, place=place, notes=notes)

    def places(self, texts: Sequence[str]) -> list[RunPlace]:
        """Return the places of runs in the order of `texts`; without any every run of the namespace or store."""
        wanted = [_read(text) for text in texts]
        is_asked = self.asks_for_stores and not all(parent for _, parent in wanted)
        sent = self._sent() if is_asked or (not texts and self.asks_for_stores) else {}
        if not texts and not sent:
            return self._all()
        places = list[RunPlace]()
        for run_id, parent in wanted or [(name, "") for name in sorted(sent)]:
            root = self._root(parent, sent.get(run_id)) or _raise_no_store()
            places.append(RunPlace(run_id=run_id, store=root.child(run_id)))
            if texts and not _has_run(root, run_id):
                raise ToolError(f"no run {run_id!r} in {_in_store(root, run_id)}", fix=_APPEARS)
        return places

    def _all(self) -> list[RunPlace]:
        root = self._root("") or _raise_no_store()
        if _is_no_folder(root.url):
            raise ToolError(f"store {root.url}: there is no such folder", fix="correct --store; a run makes the folder")
        names = [name for name in root.children("") if not _is_file(root, name)]
        return [RunPlace(run_id=name, store=root.child(name)) for name in names]

    def _sent(self) -> dict[str, StoreAddress]:
        """Return the stores of the namespace's experiments that can be read from here, by run."""
        trees = experiments(self.connect())
        return {run_id: at for run_id, tree in trees.items() if (at := readable(address_of(tree))) is not None}

    def _root(self, parent: str, sent: StoreAddress | None = None) -> Store | None:
        """Open the store of a run; return None where nothing names one."""
        local = DEFAULT_STORE if Path(DEFAULT_STORE).is_dir() else None
        if not (at := parent or self.store or sent or self.shell_store or local):
            return None
        url = at.url if isinstance(at, StoreAddress) else at
        if url not in self._roots:
            self._roots[url] = open_place(at)
        return self._roots[url]

    def _place(self, run_id: str, parent: str, run: ClusterRun | None, notes: list[str]) -> RunPlace | None:
        """Return the place of a run's results; None where there are none yet or no way to them from here."""
        is_known = run is not None and run.is_known
        sent = run.store if run is not None else None
        if is_known and not (parent or self.store or readable(sent)):
            where = f" ({sent.url})" if sent else ""
            notes.append(f"its store{where} is a folder of the run's own volume and cannot be read from here")
            return None
        if (root := self._root(parent, readable(sent))) is None:
            return None if run is not None else _raise_no_store()
        try:
            if _has_run(root, run_id):
                return RunPlace(run_id=run_id, store=root.child(run_id))
        except StoreError as error:
            if not is_known:
                raise
            notes.append(f"the store was left out: {error}")
            return None
        if is_known:
            notes.append(f"nothing in the store {root.url}/{run_id} yet: it appears with the first attempt")
        return None


def _raise_no_store() -> NoReturn:
    raise usage_error(
        f"which store, or which cluster? There is no ./{DEFAULT_STORE} here",
        fix=f"give --store URL or set {STORE_VARIABLE}, give --namespace, or name the run's path or URL",
    )


def readable(sent: StoreAddress | None) -> StoreAddress | None:
    """Return the store of an experiment in a cluster; None for a folder of the run's own volume."""
    return None if sent is None or urlsplit(sent.url).scheme in ("", "file") else sent


def _is_file(root: Store, name: str) -> bool:
    """Return True for a stray file next to the runs of a folder."""
    path = root.local_path(name)
    return path is not None and path.is_file()


def _has_run(root: Store, run_id: str) -> bool:
    return not _is_file(root, run_id) and root.child(run_id).exists(RUN_FILE)


def _in_store(root: Store, run_id: str) -> str:
    """Return the store's name, with the reason why a run is not found in it."""
    if _is_no_folder(root.url):
        return f"store {root.url}: there is no such folder"
    names = root.children("")
    if run_id in names:
        return f"store {root.url}: {run_id} is no folder with a run's record (the file {RUN_FILE})"
    return f"store {root.url}{_near(run_id, names)}"


def _near(name: str, names: Iterable[str]) -> str:
    near = nearest(name, list(names))
    return f": did you mean {near}?" if near else ""


def _is_no_folder(url: str) -> bool:
    path = url.removeprefix("file://")
    return "://" not in path and not Path(path or "/").is_dir()
