"""The rules of a run's life, access and volumes, which KubeRay or the kubelet would only notice in a running cluster."""

from __future__ import annotations

from opd.config.defaults import RUNS
from opd.config.rule import Rule

_TOOLS = "(cluster.toolDatabase.claim is not None or cluster.toolDatabase.url is not None)"
_TOOLS_SHOWN = "cluster.toolDatabase.url if cluster.toolDatabase.claim is None else cluster.toolDatabase.claim"
_DEADLINE = "cluster.deadlines.preRunningSeconds + cluster.stop.saveSeconds"

RUN_RULES = (
    Rule(
        key="cluster.image.ref",
        when="not cluster.image.ref",
        rule="the image is required and has no default",
        fix="run `images/build.sh trainer --push REGISTRY`: it prints the reference to use, with its digest",
        chart_only=True,
    ),
    *(
        Rule(
            key=key,
            when=f'{key} is not None and not cluster.image.local and not matches({key}, "@sha256:[0-9a-f]{{64}}$")',
            rule="an image is named by its digest, so that every pod and every attempt runs the same one",
            fix="use the reference that `images/build.sh trainer --push REGISTRY` prints, or cluster.image.local: true for an "
            "image loaded onto the nodes",
            chart_only=True,
        )
        for key in ("cluster.image.ref", "cluster.submitter.image")
    ),
    *(
        Rule(
            key=key,
            when=f"not {key}.workersSeconds <= {key}.clusterSeconds <= {key}.selfSeconds",
            rule="KubeRay demands workersSeconds <= clusterSeconds <= selfSeconds",
            fix="let each stage last at least as long as the one before",
        )
        for key in ("cluster.cleanUp.succeeded", "cluster.cleanUp.failed")
    ),
    Rule(
        key="cluster.deadlines",
        when="(cluster.deadlines.activeSeconds is None) != (cluster.deadlines.preRunningSeconds is None)",
        rule="the trainer finds the time to save from both deadlines: give both or none",
        fix="set activeSeconds and preRunningSeconds",
    ),
    Rule(
        key="cluster.deadlines.activeSeconds",
        when="cluster.deadlines.activeSeconds is not None and cluster.deadlines.preRunningSeconds is not None "
        f"and cluster.deadlines.activeSeconds <= {_DEADLINE}",
        rule="it counts from the start, so it must exceed deadlines.preRunningSeconds + stop.saveSeconds = "
        f"{{{_DEADLINE}}}, or no time is left to train",
        fix=f"use more than {{{_DEADLINE}}}",
    ),
    Rule(
        key="cluster.lifecycle",
        when='cluster.queue.manager == "kueue" and cluster.lifecycle != "suspendable"',
        rule="Kueue suspends runs, which KubeRay refuses for a RayJob with deletion rules",
        fix="set cluster.lifecycle: suspendable",
    ),
    Rule(
        key="cluster.submissionMode",
        when='cluster.queue.manager == "volcano" and cluster.submissionMode != "K8sJobMode"',
        rule="KubeRay writes Volcano's gang metadata in K8sJobMode only",
        fix="set cluster.submissionMode: K8sJobMode",
    ),
    Rule(
        key="cluster.serviceAccount.annotations",
        when="cluster.serviceAccount.name is not None and cluster.serviceAccount.annotations",
        rule="they are for the run's own account; {cluster.serviceAccount.name} is another's",
        fix="annotate that account itself, or remove cluster.serviceAccount.name",
    ),
    Rule(
        key="cluster.networkPolicy.enabled",
        when="not cluster.networkPolicy.enabled and not cluster.networkPolicy.acceptOpenNetwork",
        rule="Ray's token does not guard the ports on which verl, TransferQueue and torch exchange pickled objects: without a "
        "policy every pod that reaches them runs code in the run",
        fix="leave it true; or, where something else keeps other pods away, set cluster.networkPolicy.acceptOpenNetwork: true",
    ),
    Rule(
        key="cluster.auth.token",
        when="not cluster.auth.token and not cluster.networkPolicy.enabled",
        rule="Ray runs any code that reaches it: without token and network policy, every pod of the cluster could",
        fix="leave cluster.auth.token or cluster.networkPolicy.enabled true",
    ),
    Rule(
        each="cluster.extraEnv",
        key="cluster.extraEnv.{index}",
        when="(item.value is None) == (item.valueFrom is None)",
        value="item.name",
        rule="a variable has either a value or a valueFrom",
        fix="keep one of the two",
    ),
    Rule(
        key="cluster.checkpoints.claim",
        when="cluster.checkpoints.ephemeral and cluster.checkpoints.claim is not None",
        rule="an ephemeral run has no claim",
        fix="remove claim, or ephemeral",
    ),
    Rule(
        key="store.url",
        when='cluster.checkpoints.ephemeral and (store.url is None or not contains(store.url, "://") '
        'or starts_with(store.url, "file://"))',
        rule="without a claim only an object store keeps results",
        fix="set store.url to s3://..., or cluster.checkpoints.ephemeral: false",
    ),
    Rule(
        key="cluster.checkpoints.accessMode",
        when="not cluster.checkpoints.ephemeral and cluster.checkpoints.claim is None "
        'and cluster.checkpoints.accessMode == "ReadWriteOnce" and pods.worker.count > 1',
        rule="all Ray pods mount the volume, ReadWriteOnce binds them to one node, and trainer.nnodes is {pods.worker.count}",
        fix="use ReadWriteMany with a StorageClass that has it, or cluster.checkpoints.ephemeral: true",
        kinds=RUNS,
    ),
    Rule(
        key="cluster.toolDatabase",
        when="cluster.toolDatabase.claim is not None and cluster.toolDatabase.url is not None",
        rule="the tool database comes from one place",
        fix="keep claim or url",
        kinds=RUNS,
    ),
    Rule(
        key="cluster.toolDatabase.sha256",
        when="(cluster.toolDatabase.url is None) != (cluster.toolDatabase.sha256 is None)",
        rule="a fetched database is verified: url and sha256 belong together",
        fix="give both",
        kinds=RUNS,
    ),
    Rule(
        each="pods.databases",
        key="agent.database_dir",
        value="item",
        when=f'{_TOOLS} and not starts_with(item, "/")',
        rule="the tool database is mounted there, so it is an absolute path",
        fix="use /databases/NAME",
        kinds=RUNS,
    ),
    Rule(
        key="cluster.toolDatabase",
        when=f"len(pods.databases) == 0 and {_TOOLS}",
        value=_TOOLS_SHOWN,
        rule="no tool uses it: the spec has no `agent`",
        fix="remove it, or add agent.database_dir",
        kinds=RUNS,
    ),
)
