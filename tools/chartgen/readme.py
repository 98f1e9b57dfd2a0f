"""Writes the text of a chart's README.md: what it is for, how to install it, one table of all values."""

from __future__ import annotations

from typing import Any

from chartgen.chart import Chart
from chartgen.values import HIDDEN
from opd.config.keys import keys

PURPOSE = {
    "grpo": "GRPO in three recipes through verl's own trainer",
    "opd": "on-policy distillation of a student by a frozen teacher, single turn",
    "opd-agent": "on-policy distillation over multi-turn rollouts with tools over a database",
    "sft": "supervised fine-tuning: cross-entropy on given answers, or on a teacher's",
    "eval": "validation only: every data set, several answers a problem",
    "passrate": "the share of right answers to every training prompt, by which distillation may weigh them",
    "convert": "FSDP shards of a checkpoint to a Hugging Face folder",
    "pipeline": "stages of the other kinds, one after another in one Ray cluster, each going on from what earlier ones left",
}
TEXT = """\
# {kind}

One release of this chart is one run: {purpose}. It needs KubeRay 1.6 or newer.

```
helm install my-run charts/{kind} --namespace opd -f {example} \\
  --set cluster.image.ref=REGISTRY/IMAGE@sha256:DIGEST
```

The release name is the run id: it names the RayJob, its claim and the prefix in the store. A run is not upgraded: install
another release, or uninstall this one and install it again under the same name: {again}.
{beside}
## Values

An experiment file is this chart's values file. Keys with `-` as default are left out unless given; those that follow from
other keys say how; `required with SECTION` and its neighbours' defaults count where the section is given. The keys of `cluster`,
how the run meets Kubernetes, are the same for every kind: [charts/opd-lib](../opd-lib/README.md). Generated from `opd.config`
by `make schema`.

"""
AGAIN = {
    "eval": "it asks only the prompts whose answers are not stored yet",
    "passrate": "it asks only the prompts whose answers are not stored yet",
    "convert": "it begins again and replaces its folder",
    "pipeline": "it goes on at the first stage that has not ended, which resumes",
}
"""What a run of a kind does under the name of one that did not end, where it does not train."""
BESIDE = {
    "pipeline": """\

All stages run in one RayJob and one Ray cluster, one after another, as [the experiment file](../../src/opd/config/README.md#pipelines)
says. `cluster` is the whole pipeline's: claims, Secrets, ways out and store serve every stage. Its pods hold the most that any
stage needs of each resource: as many workers as the largest `trainer.nnodes`, each with the largest `trainer.gpus_per_node`, and the CPUs
and memory of the stage that needs most of them; the head has a conversion's memory where a stage converts or refers to a model that
another one trains. GPUs are held from the first stage to the last. A conversion of a small model needs less than
that default: give `cluster.head.requests.memory`. Tools' data (`cluster.toolDatabase`) are mounted at each stage's `agent.database_dir`.

A stage is checked as an experiment of its kind: keys, types, ranges, and the rules between keys, under `stages.NAME`. What
only the tool and the trainer check: that a reference names a stage and something that it leaves, that stages do not wait for each other, that a
stage keeps what a later one reads, and that no two runs have one name.
""",
}
CLUSTER_TEXT = """\
# opd-lib

The library that the charts share: templates, and the rules between keys. It is not installed by itself.

## `cluster`: how a run meets Kubernetes

Values of every chart, beside the experiment's own ([opd](../opd/README.md), for one). `convert` has no workers: of `worker`, `gpu`
and `rdma` it takes anything, so that one site file fits every kind, and it has no `toolDatabase`. Keys with `-` as default are
left out unless given; `required with SECTION` and its neighbours' defaults count where the section is given. Generated from
`opd.config` by `make schema`.

"""
TABLE = """\
| key | type | default | description |
| --- | --- | --- | --- |
"""
EXAMPLES = {
    "grpo": "manifests/experiments/grpo-qwen3-8b.yaml",
    "opd": "manifests/experiments/opd-qwen3-8b-to-1.7b.yaml",
    "opd-agent": "manifests/experiments/opd-agent-travel.yaml",
    "sft": "manifests/experiments/sft.yaml",
    "eval": "manifests/experiments/eval-math.yaml",
    "passrate": "manifests/experiments/passrate.yaml",
    "convert": "manifests/experiments/convert.yaml",
    "pipeline": "manifests/pipelines/warmup-distil-toy.yaml",
}


def readme(chart: Chart) -> str:
    """The file's text."""
    head = TEXT.format(
        kind=chart.kind,
        purpose=PURPOSE[chart.kind],
        example=EXAMPLES[chart.kind],
        again=AGAIN.get(chart.kind, "it resumes from its newest checkpoint"),
        beside=BESIDE.get(chart.kind, ""),
    )
    properties = {name: node for name, node in chart.schema["properties"].items() if name not in ("cluster", *HIDDEN)}
    return head + _table({**chart.schema, "properties": properties}, chart.defaults, "")


def cluster_readme(chart: Chart) -> str:
    """The library's file, with the keys that every chart has; of a chart with workers."""
    return CLUSTER_TEXT + _table(chart.schema["properties"]["cluster"], chart.defaults["cluster"], "cluster.")


def _table(schema: dict[str, Any], defaults: dict[str, Any], prefix: str) -> str:
    rows = (
        f"| `{key.path}` | {_cell(key.takes)} | {_cell(f'`{key.default}`' if key.default else key.needed or '-')} | "
        f"{_cell(key.says)} |"
        for key in keys(schema, defaults, prefix)
    )
    return TABLE + "\n".join(rows) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
