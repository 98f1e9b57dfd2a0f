"""Sends experiments to a cluster: every one is decided on, rendered and tried before the first is installed."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from opd.config import dump_spec
from opd.errors import StoreError
from opd.store.access import StoreAddress, address_of
from opd.store.base import Store
from opdctl.chart.helm import Where, find_chart, install, release_status, template, uninstall
from opdctl.chart.values import Experiment
from opdctl.console import note
from opdctl.doctor.cluster import Examination, OneLook
from opdctl.doctor.rendered import check_held
from opdctl.doctor.report import Check
from opdctl.errors import EXIT_USAGE, ToolError
from opdctl.kube.client import KubeApi
from opdctl.kube.dry_run import dry_run, is_over_quota, pods_of, rendered_objects
from opdctl.kube.run import look
from opdctl.kube.waiting import explain
from opdctl.runs.listing import Listing
from opdctl.runs.record import live_state, read_run
from opdctl.runs.state import attempt_lines
from opdctl.runs.targets import open_place
from opdctl.submit.names import Decision, Name, Stored, decide, next_free, read_stored

POLL_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Order:
    """One experiment that may be sent: `chart` and `decision` are settled."""

    experiment: Experiment
    chart: Path
    decision: Decision


class Sender:
    """Sends experiments to one namespace.

    Args:
        is_new: take the next free name where the experiment's own is taken.
        timeout_s: for each of Helm's calls.
    """

    def __init__(self, api: KubeApi, *, charts: Path | None, is_new: bool, timeout_s: float):
        self.api = api
        self._once = OneLook(api)
        self.where = Where(namespace=api.namespace, context=api.context)
        self.charts = charts
        self.is_new = is_new
        self.timeout_s = timeout_s
        self._taken: set[str] = set()
        self._unreadable: set[str] = set()
        self._warned: set[str] = set()

    def prepare(self, experiments: Sequence[Experiment]) -> list[Order]:
        """What to do about each experiment; nothing is changed yet.

        Raises:
            ToolError: the first that is refused, by the chart, by its name, or by the API server.
        """
        orders = [self._order(item) for item in experiments]
        for order in orders:
            self._try(order)
        return orders

    def send(self, order: Order) -> None:
        """Installs one; a run that is resumed loses its old release first, not its claim.

        Raises:
            ToolError: Helm or the API server refused.
        """
        run_id = order.experiment.run_id
        if order.decision.action == "resume":
            uninstall(run_id, self.where, timeout_s=self.timeout_s)
            self.api.delete(self.api.path("rayjobs", run_id))  # made without Helm, or left by a release that is gone
            self._wait_until_gone(run_id)
        install(order.experiment, chart=order.chart, where=self.where, timeout_s=self.timeout_s)

    def _order(self, item: Experiment) -> Order:
        chart = find_chart(item.spec.kind, self.charts)
        if self.is_new:
            run_id = next_free(item.run_id, lambda candidate: self._is_free(item, candidate))
            item = _renamed(item, run_id)
        self._taken.add(item.run_id)
        return Order(experiment=item, chart=chart, decision=decide(self._name(item, item.run_id), item.spec))

    def _is_free(self, item: Experiment, run_id: str) -> bool:
        return run_id not in self._taken and self._name(item, run_id).is_free

    def _name(self, item: Experiment, run_id: str) -> Name:
        at = address_of(dump_spec(item.spec))
        return Name(
            run_id=run_id,
            cluster=look(self.api, run_id),
            stored=self._stored(at, run_id),
            release=release_status(run_id, self.where, timeout_s=self.timeout_s),
        )

    def _stored(self, at: StoreAddress | None, run_id: str) -> Stored:
        """What the store knows; one on the run's own volume, or that cannot be read from here, knows nothing."""
        if at is None or at.url in self._unreadable or urlsplit(at.url).scheme in ("", "file"):
            return Stored()
        try:
            place = open_place(at, timeout_s=self.timeout_s).child(run_id)
            return read_stored(place, lease_holder=_lease_holder)
        except StoreError as error:
            self._unreadable.add(at.url)
            said = "the store cannot be read from here, so only the cluster says whether a name is taken"
            note(f"warning: {said}: {error}")
            return Stored()

    def _try(self, order: Order) -> None:
        text = template(order.experiment, chart=order.chart, namespace=self.api.namespace, timeout_s=self.timeout_s)
        # Pods wait for a Secret that is not there; who may not read Secrets is told nothing.
        secrets = Examination(self._once, order.experiment, text).secrets()
        self._warn([*secrets, *check_held(order.experiment.spec, text)])
        objects = rendered_objects(text)
        pods = [pod for tree in objects if tree["kind"] == "RayJob" for pod in pods_of(tree)]
        waiting = dry_run(self.api, pods)
        refused = dry_run(self.api, objects) + [error for error in waiting if not is_over_quota(error)]
        for error in waiting:
            if is_over_quota(error):
                note(f"warning: {order.experiment.run_id} will wait: {explain(str(error))}")
        if refused:
            lines = "\n".join(f"  {error}" for error in refused)
            fix = next((error.fix for error in refused if error.fix), "mend the keys that the server names")
            raise ToolError(
                f"the API server refuses {order.experiment.run_id}:\n{lines}", fix=fix, exit_code=EXIT_USAGE
            )

    def _warn(self, checks: Sequence[Check]) -> None:
        """Once for all cells of a sweep."""
        for check in checks:
            if check.state in ("MISSING", "warning") and check.message not in self._warned:
                self._warned.add(check.message)
                note(f"warning: {check.message}; fix: {check.fix}")

    def _wait_until_gone(self, run_id: str) -> None:
        """Its finalizer stops the Ray job first; a new RayJob of the name cannot be made before."""
        deadline_s = time.monotonic() + self.timeout_s
        while self.api.find(self.api.path("rayjobs", run_id)) is not None:
            if time.monotonic() > deadline_s:
                raise ToolError(
                    f"the old RayJob {run_id} is still there after {self.timeout_s:g} s",
                    fix="is the KubeRay operator running? It removes the finalizer. Then submit again",
                )
            time.sleep(POLL_S)


def _renamed(item: Experiment, run_id: str) -> Experiment:
    if run_id == item.run_id:
        return item
    spec = item.spec.model_copy(update={"name": run_id})
    return dataclasses.replace(item, spec=spec, values={**item.values, "name": run_id})


def _lease_holder(store: Store) -> str:
    listing = Listing(store)
    attempts = attempt_lines(listing)
    if not attempts or attempts[-1].outcome:
        return ""
    record, _ = read_run(listing, run_id="")
    return attempts[-1].host if live_state(record, listing)[0] == "running" else ""
