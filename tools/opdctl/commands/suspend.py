"""`opdctl suspend`: the run's pods save and go, its RayJob stays and waits for `opdctl resume`."""

from __future__ import annotations

from opdctl.commands.cancel import MARGIN_S, EndTimeout, NoWait
from opdctl.completion import Run
from opdctl.console import Context, Namespace, StoreUrl, deadline


def suspend(
    run: Run,
    store: StoreUrl = None,
    namespace: Namespace = None,
    context: Context = None,
    no_wait: NoWait = False,
    timeout: EndTimeout = None,
) -> None:
    """Suspend a run of lifecycle suspendable, in no Kueue queue: its pods save and go, its GPUs are free until `opdctl resume`.

    Example: `opdctl suspend my-run -n opd`
    """
    from opdctl.commands.wait import progress_record
    from opdctl.runs.control import refuse_suspend, require_job, set_suspend, wait_for_phase, what_is_saved
    from opdctl.runs.locate import in_cluster

    with deadline((timeout or 3600.0) + MARGIN_S):
        api, found = in_cluster(run, store=store, namespace=namespace, context=context, timeout_s=timeout or MARGIN_S)
        job = require_job(found.in_cluster, found.run_id, api.namespace)
        refuse_suspend(job)
        before = progress_record(found.place)
        set_suspend(api, found.run_id, is_suspended=True)
        if no_wait:
            print(f"{found.run_id}  is being suspended: its pods wait up to {job.grace_s:.0f} s for the save")
            return
        wait_for_phase(api, found.run_id, ["suspended"], timeout_s=timeout or job.grace_s + MARGIN_S)
        after = progress_record(found.place)
    print(f"{found.run_id}  suspended; {what_is_saved(before, after)}")
    print(f"next:\n  opdctl resume {found.run_id} -n {api.namespace}")
