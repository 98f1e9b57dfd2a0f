"""Submission to a cluster: every experiment is decided on, rendered and tried before the first is installed."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from opd.config import dump_spec
from opd.errors import StoreError
from opd.runs.attempts import DEFAULT_LEASE_TTL_S
from opd.runs.result import clear_fatal
from opd.store.access import address_of
from opd.store.base import Store
from opdctl.chart.helm import Where, find_chart, install, release_status, template, uninstall
from opdctl.chart.values import Experiment
from opdctl.console import note
from opdctl.doctor.check import Check
from opdctl.doctor.cluster import Examination, OneLook
from opdctl.errors import EXIT_USAGE, ToolError
from opdctl.kube.client import KubeApi
from opdctl.kube.dry_run import dry_run, is_over_quota, pods_of, rendered_objects
from opdctl.kube.run import look
from opdctl.kube.waiting import explain
from opdctl.runs.attempts import attempt_line
from opdctl.runs.listing import Listing
from opdctl.runs.places import open_place
from opdctl.submit.names import Decision, Name, Stored, decide, next_free, read_stored

POLL_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Order:
    """One experiment with its chart and decision; `store` holds its earlier results, None if it cannot be read."""

    experiment: Experiment
    chart: Path
    decision: Decision
    store: Store | None = None


class Sender:
    """Sends experiments to one namespace.

    Args:
        is_new: take the next free name where the experiment's own is taken.
        is_retry: resume runs that ended for good, too.
        timeout_s: limit of each call of Helm.
    """

    def __init__(self, api: KubeApi, *, charts: Path | None, is_new: bool, is_retry: bool = False, timeout_s: float):
        self.api = api
        self._once = OneLook(api)
        self.where = Where(namespace=api.namespace, context=api.context)
        self.charts = charts
        self.is_new = is_new
        self.is_retry = is_retry
        self.timeout_s = timeout_s
        self._taken: set[str] = set()
        self._unreadable: set[str] = set()
        self._warned: set[str] = set()

    def prepare(self, experiments: Sequence[Experiment]) -> list[Order]:
        """Decide on each experiment; nothing is changed yet.

        Raises:
            ToolError: the first rejection, by the chart, by the name, or by the API server.
        """
        orders = [self._order(item) for item in experiments]
        for order in orders:
            self._try(order)
        return orders

    def send(self, order: Order) -> None:
        """Install one; a run that is resumed loses its old release first, not its claim.

        Raises:
            ToolError: Helm or the API server rejects it.
        """
        run_id = order.experiment.run_id
        if order.decision.action == "resume":
            uninstall(run_id, self.where, timeout_s=self.timeout_s)
            self.api.delete(self.api.path("rayjobs", run_id))  # made without Helm
            self._wait_until_gone(run_id)
            if order.store is not None:
                clear_fatal(order.store)
        install(order.experiment, chart=order.chart, where=self.where, timeout_s=self.timeout_s)

    def _order(self, item: Experiment) -> Order:
        chart = find_chart(item.spec.kind, self.charts)
        if self.is_new:
            run_id = next_free(item.run_id, lambda candidate: self._is_free(item, candidate))
            item = _renamed(item, run_id)
        self._taken.add(item.run_id)
        decision = decide(self._name(item, item.run_id), item.spec, is_retry=self.is_retry)
        return Order(experiment=item, chart=chart, decision=decision, store=self._place(item, item.run_id))

    def _is_free(self, item: Experiment, run_id: str) -> bool:
        return run_id not in self._taken and self._name(item, run_id).is_free

    def _name(self, item: Experiment, run_id: str) -> Name:
        return Name(
            run_id=run_id,
            cluster=look(self.api, run_id),
            stored=self._stored(item, run_id),
            release=release_status(run_id, self.where, timeout_s=self.timeout_s),
        )

    def _place(self, item: Experiment, run_id: str) -> Store | None:
        """Return the store of a run; None for the run's own volume and for a store that cannot be read from here."""
        at = address_of(dump_spec(item.spec))
        if at is None or at.url in self._unreadable or urlsplit(at.url).scheme in ("", "file"):
            return None
        return open_place(at, timeout_s=self.timeout_s).child(run_id)

    def _stored(self, item: Experiment, run_id: str) -> Stored:
        try:
            place = self._place(item, run_id)
            return Stored() if place is None else read_stored(place, lease_holder=_lease_holder)
        except StoreError as error:
            at = address_of(dump_spec(item.spec))
            self._unreadable.add(at.url if at is not None else "")
            note(f"warning: the store cannot be read from here, so only the cluster shows taken names: {error}")
            return Stored()

    def _try(self, order: Order) -> None:
        text = template(order.experiment, chart=order.chart, namespace=self.api.namespace, timeout_s=self.timeout_s)
        # Pods wait for an object that does not exist; a check that may not read is left out.
        self._warn(Examination(self._once, order.experiment, text).named())
        objects = rendered_objects(text)
        pods = [pod for tree in objects if tree["kind"] == "RayJob" for pod in pods_of(tree)]
        waiting = dry_run(self.api, pods)
        rejected = dry_run(self.api, objects) + [error for error in waiting if not is_over_quota(error)]
        for error in waiting:
            if is_over_quota(error):
                note(f"warning: {order.experiment.run_id} will wait: {explain(str(error))}")
        if rejected:
            lines = "\n".join(f"  {error}" for error in rejected)
            fix = next((error.fix for error in rejected if error.fix), "mend the keys that the server names")
            raise ToolError(
                f"the API server rejects {order.experiment.run_id}:\n{lines}", fix=fix, exit_code=EXIT_USAGE
            )

    def _warn(self, checks: Sequence[Check]) -> None:
        """Print each warning once for all cells of a sweep."""
        for check in checks:
            if check.state in ("MISSING", "warning") and check.message not in self._warned:
                self._warned.add(check.message)
                note(f"warning: {check.message}; fix: {check.fix}")

    def _wait_until_gone(self, run_id: str) -> None:
        """Wait for the old RayJob's finalizer, which stops the Ray job: until then the name is taken."""
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
    if not (attempts := listing.attempts()):
        return ""
    last = attempt_line(listing, attempts[-1])
    return "" if last.outcome or abs(time.time() - last.last_sign_s) > DEFAULT_LEASE_TTL_S else last.host
