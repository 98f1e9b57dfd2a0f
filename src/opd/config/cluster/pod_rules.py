"""The rules of groups of pods: labels, requests and limits: what would wait for ever, or be killed.

`pods` holds the requests and limits of each group as they will be, the CPUs and GiB that its processes need, how many pods it
has and whether they have GPUs; and `databases`, the folders from which the run's agents read their tools' data.
"""

from __future__ import annotations

from opd.config.base import KINDS
from opd.config.defaults import RUNS
from opd.config.rule import Rule

ROLES = {"head": KINDS, "worker": RUNS, "submitter": KINDS}
_RAY_ROLES = {"head": KINDS, "worker": RUNS}

POD_RULES = (
    *(
        Rule(
            key=f"cluster.{role}.labels",
            each='("app.kubernetes.io/name", "app.kubernetes.io/created-by")',
            when=f"cluster.{role}.labels[item] is not None or cluster.labels[item] is not None",
            value="item",
            rule="KubeRay's head service finds its pod by this label",
            fix="use another label",
            kinds=kinds,
        )
        for role, kinds in ROLES.items()
    ),
    *(
        Rule(
            key=f"cluster.{role}.objectStoreGib",
            when=f"cluster.{role}.objectStoreGib > cluster.{role}.shmGib",
            rule=f"Ray's object store lies in /dev/shm, which has {{cluster.{role}.shmGib}} GiB",
            fix=f"raise cluster.{role}.shmGib, or lower objectStoreGib",
            kinds=kinds,
        )
        for role, kinds in _RAY_ROLES.items()
    ),
    *(
        Rule(
            key=f"cluster.worker.{field}",
            when=f"cluster.worker.{field}[cluster.gpu.resource] is not None",
            value="cluster.gpu.resource",
            rule="the number of GPUs is said once, in trainer.gpus_per_node",
            fix="remove it here",
            kinds=RUNS,
        )
        for field in ("requests", "limits")
    ),
    Rule(
        key="cluster.rdma.ipcLock",
        when="cluster.rdma.ipcLock and not cluster.rdma.enabled",
        rule="the capability is for RDMA only",
        fix="set cluster.rdma.enabled: true, or remove ipcLock",
        kinds=RUNS,
    ),
    *(
        Rule(
            key=f"cluster.{role}.requests.{{item}}",
            each=f"keys(pods.{role}.requests)",
            when=f"pods.{role}.limits[item] is not None "
            f"and quantity(pods.{role}.requests[item]) > quantity(pods.{role}.limits[item])",
            value=f"pods.{role}.requests[item]",
            rule=f"a request is at most its limit, which is {{pods.{role}.limits[item]}}",
            fix=f"lower it, or raise cluster.{role}.limits.{{item}}",
            kinds=kinds,
        )
        for role, kinds in ROLES.items()
    ),
    # Ray schedules by the pod's CPUs: its limit, else its request, in whole ones (KubeRay rounds up). The head offers none,
    # and a run on the CPU gets its slots from the chart.
    Rule(
        key="cluster.worker.{'requests' if pods.worker.limits.cpu is None else 'limits'}.cpu",
        when="pods.worker.onGpu and ceil(quantity(pods.worker.requests.cpu if pods.worker.limits.cpu is None "
        "else pods.worker.limits.cpu)) < pods.worker.cpus",
        value="pods.worker.requests.cpu if pods.worker.limits.cpu is None else pods.worker.limits.cpu",
        rule="Ray places a run by CPUs, and a node of this one needs {pods.worker.cpus} ({pods.worker.byPart}): with fewer it "
        "would hold its GPUs and wait for ever",
        fix="use at least {pods.worker.cpus}, or remove the key",
        kinds=RUNS,
    ),
    *(
        Rule(
            key=f"cluster.{role}.shmGib",
            when=f"quantity(pods.{role}.limits.memory) < cluster.{role}.shmGib * 1073741824",
            rule=f"/dev/shm counts against the memory limit, which is {{pods.{role}.limits.memory}}",
            fix=f"lower it, or raise cluster.{role}.limits.memory",
            kinds=kinds,
        )
        for role, kinds in _RAY_ROLES.items()
    ),
    *(
        Rule(
            key=f"cluster.{role}.limits.memory",
            when=f"quantity(pods.{role}.limits.memory) < ceil({least}) * 1073741824",
            value=f"pods.{role}.limits.memory",
            rule=f"the processes of one pod and Ray's object store take {{ceil({least})}} GiB before a model is loaded",
            fix=f"use at least {{ceil({least})}}Gi, or remove the key",
            kinds=kinds,
        )
        for role, kinds in _RAY_ROLES.items()
        for least in [f"pods.{role}.leastGib + cluster.{role}.objectStoreGib"]
    ),
)
