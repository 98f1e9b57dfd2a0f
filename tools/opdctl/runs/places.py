"""The finder of runs: a name in a store or a namespace, a run's own path or URL, or an experiment file."""

from __future__ import annotations

import difflib
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
from opdctl.kube.run import ClusterRun, experiments, look

STORE_VARIABLE = "OPDCTL_STORE"
DEFAULT_STORE = "outputs/store"
SPEC_SUFFIXES = (".yaml", ".yml", ".json")
# A user waits: shorter than the trainer's patience, unless --timeout is long.
PATIENCE_S = 5.0
_APPEARS = "`opdctl list` shows the runs; a run appears in a store with its first attempt"


@dataclass(frozen=True, kw_only=True)
class RunPlace:
    """One run: its id and the store rooted at its directory."""

    run_id: str
    store: Store


@dataclass(frozen=True, kw_only=True)
class Target:
    """A run as the user wrote it.

    Attributes:
        store: the store of a path, a URL or an experiment file; None for a name.
        default: the store of an experiment file that names none.
        is_place: a path or URL of the run's own directory.
    """

    run_id: str
    store: str | StoreAddress | None = None
    default: str | None = None
    is_place: bool = False


@dataclass(frozen=True, kw_only=True)
class Found:
    """A run on both sides: its cluster (None without one) and its results (None before there are any)."""

    run_id: str
    api: KubeApi | None
    in_cluster: ClusterRun | None
    place: RunPlace | None
    notes: list[str] = field(default_factory=list)
    """What could not be read, and the reasons."""


def open_place(at: str | StoreAddress, *, timeout_s: float) -> Store:
    """Open the store of a path or URL; the shell's variables win over an experiment's.

    Args:
        timeout_s: the command's; a store gets up to a third of it for an answer.
    """
    url, variables = at if isinstance(at, StoreAddress) else (at, {})
    check_url(url)
    patience_s = min(timeout_s / 3, max(PATIENCE_S, timeout_s / 60), SILENCE_S)
    policy = RetryPolicy(max_elapsed_s=patience_s, silence_s=patience_s)
    return open_store(url, policy=policy, environment=under(variables, os.environ))


def check_url(url: str) -> None:
    """Reject a store that no run may have, before a folder of that name is made.

    Raises:
        ToolError: it carries credentials, or is a malformed URL.
    """
    if urlsplit(url).password is not None or "@" in urlsplit(url).netloc:
        raise usage_error(
            f"store {urlsplit(url).scheme}://{urlsplit(url).hostname or ''}...: a store URL carries no credentials",
            fix="give them in the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL)",
        )
    if not is_usable(url):
        raise usage_error(f"store {url}: {URL_RULE}", fix=URL_FIX)


def read_target(text: str) -> Target:
    """Read a name, the path or URL of a run's directory, or an experiment file.

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


class Finder:
    """The finder for one command line.

    Args:
        store: --store; None means $OPDCTL_STORE, then the store of the run's experiment in the namespace, then ./outputs/store.
        no_cluster: read the store only.
        timeout_s: the command's.
    """

    def __init__(
        self,
        *,
        store: str | None = None,
        namespace: str | None = None,
        context: str | None = None,
        no_cluster: bool = False,
        timeout_s: float,
    ):
        self.store, self.namespace, self.context = store, namespace, context
        self.is_named = not no_cluster and (namespace is not None or context is not None)
        self.has_cluster = not no_cluster and (self.is_named or is_configured())
        self.timeout_s = timeout_s
        self.shell_store = os.environ.get(STORE_VARIABLE) or None

    def connect(self) -> KubeApi:
        """Return the cluster that the command line names.

        Raises:
            ClusterUnreachable: no way to it.
        """
        return connect(namespace=self.namespace, context=self.context)

    def locate(self, text: str, *, must_be_in_cluster: bool = False, may_be_unknown: bool = False) -> Found:
        """Read one run from cluster and store.

        An unreachable cluster is an error only where --namespace or --context names it.

        Args:
            must_be_in_cluster: for commands that change the run there.
            may_be_unknown: for commands that remove what a run may have left.

        Raises:
            ToolError: neither side knows the run.
        """
        target = read_target(text)
        notes: list[str] = []
        api, run, failure = None, None, None
        if must_be_in_cluster or self.is_named or (self.has_cluster and not target.is_place):
            try:
                api = self.connect()
                run = look(api, target.run_id)
            except ClusterError as error:
                if self.is_named or must_be_in_cluster:
                    raise
                api, run, failure = None, None, error
                notes.append(f"the cluster was left out: {error}")
        is_there = run is not None and (run.is_known or bool(run.pods))
        if must_be_in_cluster and not is_there:
            assert api is not None
            raise ToolError(f"no run {target.run_id!r} in namespace {api.namespace}", fix=_APPEARS)
        place = self._place(target, run, notes)
        if place is None and not is_there and not (may_be_unknown and api):
            if failure is not None and not (self.store or self.shell_store or target.store):
                failure.fix += ", or name the run's store with --store URL"
                raise failure
            raise self._unknown(target, api, notes)
        return Found(run_id=target.run_id, api=api, in_cluster=run, place=place, notes=notes)

    def places(self, texts: Sequence[str]) -> list[RunPlace]:
        """Return the places of runs in the order of `texts`; without any every run of the namespace or store.

        Raises:
            ToolError: a name without a store, or a run that is not there.
        """
        targets = [read_target(text) for text in texts]
        sent = self._sent(targets)
        if not targets and not sent:
            return self._all()
        wanted = targets or [Target(run_id=name) for name in sorted(sent)]
        opened: dict[str, Store] = {}
        places = []
        for target in wanted:
            at = self._address(target, sent.get(target.run_id)) or target.default or self._default()
            url = at.url if isinstance(at, StoreAddress) else at
            root = opened[url] = opened.get(url) or open_place(at, timeout_s=self.timeout_s)
            places.append(RunPlace(run_id=target.run_id, store=root.child(target.run_id)))
            if targets and not places[-1].store.exists(RUN_FILE):
                raise ToolError(f"no run {target.run_id!r} in {_in_store(root, target.run_id)}", fix=_APPEARS)
        return places

    def place(self, text: str) -> RunPlace:
        """Return the place of one run."""
        return self.places([text])[0]

    def _address(self, target: Target, sent: StoreAddress | None) -> str | StoreAddress | None:
        """Return the store of a run; None where nothing names one.

        The run's own path and --store come first. An experiment in a cluster that the user named follows, then the file,
        $OPDCTL_STORE and an experiment in the default cluster.
        """
        if target.is_place:
            return target.store
        return self.store or (sent if self.is_named else None) or target.store or self.shell_store or sent

    def _sent(self, targets: Sequence[Target]) -> dict[str, StoreAddress]:
        """Return the stores of the namespace's experiments that can be read from here, by run."""
        names = [target for target in targets if not target.is_place and target.store is None]
        is_needed = self.store is None and (self.is_named or not self.shell_store) and (names or not targets)
        if not (self.has_cluster and is_needed):
            return {}
        try:
            known = {run_id: _readable(address_of(tree)) for run_id, tree in experiments(self.connect()).items()}
        except ClusterError as error:
            if self.is_named or not targets or not all(target.default for target in names):
                raise
            note(f"note: the cluster was left out: {error}")
            return {}
        return {run_id: at for run_id, at in known.items() if at is not None}

    def _place(self, target: Target, run: ClusterRun | None, notes: list[str]) -> RunPlace | None:
        """Return the place of a run's results; None where there are none yet or no way to them from here."""
        is_known = run is not None and run.is_known
        sent = run.store if run is not None and is_known else None
        at = self._address(target, _readable(sent)) or (None if is_known else target.default or _default_store())
        if at is None:
            where = f" ({sent.url})" if sent else ""
            notes.append(f"its store{where} is a folder of the run's own volume and cannot be read from here")
            return None
        try:
            place = open_place(at, timeout_s=self.timeout_s).child(target.run_id)
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

    def _unknown(self, target: Target, api: KubeApi | None, notes: list[str]) -> ToolError:
        why = f" ({'; '.join(notes)})" if notes else ""
        places = [f"namespace {api.namespace}"] if api is not None else []
        if at := self._address(target, None) or target.default or _default_store():
            places.append(_in_store(open_place(at, timeout_s=self.timeout_s), target.run_id))
        if not places:
            return _no_store(why)
        return ToolError(f"no run {target.run_id!r} in {' nor in '.join(places)}{why}", fix=_APPEARS)

    def _default(self) -> str:
        if (found := _default_store()) is None:
            raise _no_store("")
        return found

    def _all(self) -> list[RunPlace]:
        url = self.store or self.shell_store or self._default()
        root = open_place(url, timeout_s=self.timeout_s)
        if _is_no_folder(url):
            raise ToolError(f"store {url}: there is no such folder", fix="correct --store; a run makes the folder")
        # A store may hold stray files next to the runs.
        names = [name for name in root.children("") if (path := root.local_path(name)) is None or path.is_dir()]
        return [RunPlace(run_id=name, store=root.child(name)) for name in names]


def _readable(sent: StoreAddress | None) -> StoreAddress | None:
    """Return the store of an experiment in a cluster; None for a folder of the run's own volume."""
    return None if sent is None or urlsplit(sent.url).scheme in ("", "file") else sent


def _default_store() -> str | None:
    return DEFAULT_STORE if Path(DEFAULT_STORE).is_dir() else None


def _no_store(why: str) -> ToolError:
    return ToolError(
        f"which store, or which cluster? There is no ./{DEFAULT_STORE} here{why}",
        fix=f"give --store URL or set {STORE_VARIABLE}, give --namespace, or name the run's path, URL or experiment file",
        exit_code=EXIT_USAGE,
    )


def _in_store(root: Store, run_id: str) -> str:
    """Return the store's name, with the reason why a run is not found in it."""
    if _is_no_folder(root.url):
        return f"store {root.url}: there is no such folder"
    try:
        near = difflib.get_close_matches(run_id, root.children(""), 1)
    except StoreError:
        near = []
    return f"store {root.url}" + (f": did you mean {near[0]}?" if near else "")


def _is_no_folder(url: str) -> bool:
    path = url.removeprefix("file://")
    return "://" not in path and not Path(path or "/").is_dir()
