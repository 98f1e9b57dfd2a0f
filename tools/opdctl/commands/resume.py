"""`opdctl resume`: a suspended run gets its pods back and goes on from its newest checkpoint."""

from __future__ import annotations

from opdctl.commands.cancel import NoWait
from opdctl.completion import Run
from opdctl.console import Context, Namespace, Timeout, deadline


def resume(
    run: Run,
    namespace: Namespace = None,
    context: Context = None,
    no_wait: NoWait = False,
    timeout: Timeout = 120.0,
) -> None:
    """Resume a suspended run; one that failed or was cancelled is resumed by `opdctl submit`.

    Example: `opdctl resume my-run -n opd`
    """
    from opdctl.runs.control import refuse_resume, require_job, set_suspend, wait_for_phase
    from opdctl.runs.locate import in_cluster

    with deadline(timeout + 5):
        api, found = in_cluster(run, store=None, namespace=namespace, context=context, timeout_s=timeout)
        refuse_resume(require_job(found.in_cluster, found.run_id, api.namespace))
        set_suspend(api, found.run_id, is_suspended=False)
        if not no_wait:
            wait_for_phase(api, found.run_id, ["new", "starting", "running"], timeout_s=timeout)
    print(f"{found.run_id}  resumed; `opdctl status {found.run_id} -n {api.namespace}` shows its pods")
