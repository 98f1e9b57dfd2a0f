"""A first site file and experiment file: questions, choices from the cluster, and YAML under the schema's descriptions."""

from __future__ import annotations

import json
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from opd.config import SpecError
from opd.config.cluster import Gpu
from opd.config.cluster.rules import image_problems, load_cluster
from opd.config.keys import Key
from opd.config.load import SITE_KEYS
from opd.config.quantity import number
from opd.config.tree import set_path
from opdctl.chart.values import load_experiments
from opdctl.console import fail, note
from opdctl.errors import ToolError, usage_error
from opdctl.kube.client import CLASSES, DEFAULT_CLASS, KUEUE, KubeApi
from opdctl.kube.errors import HTTP_NOT_FOUND, ClusterError, ClusterUnreachable
from opdctl.kube.secrets import make_pull_secret, make_secret

WIDTH = 118
# Taints of the node controller, which go when the node is ready again.
_STATE_TAINTS = tuple(f"node.kubernetes.io/{word}" for word in ("unschedulable", "not-ready", "unreachable"))
_GPU = Gpu()

Answers = dict[str, Any]


class Interview:
    """Values by the dotted paths of their keys, in the order of the questions."""

    def __init__(self, keys: Mapping[str, Key], check: Callable[[Answers], None], *, is_asking: bool) -> None:
        """`check` raises SpecError where the answers so far break a rule; without `is_asking` only flags and offers count."""
        self.answers: Answers = {}
        self._keys, self._check, self._is_asking = keys, check, is_asking
        self._missing: list[tuple[str, str]] = []
        if is_asking:
            note("Enter takes what stands in [brackets]; where nothing does, and with -, the key is left out.")

    def ask(
        self,
        path: str,
        given: str | None,
        *,
        default: str = "",
        offered: Sequence[str] = (),
        flag: str = "",
        says: str = "",
        read: Callable[[str], Answers] | None = None,
    ) -> str:
        """The answer to one question as text, empty for none; `answers` has what `read` makes of it.

        Args:
            given: the flag's text; None where there is none.
            default: what Enter takes; the first of `offered`, which the cluster has, where it is empty.
            flag: the flag that answers it, of a key that is needed.
            says: the question, where the key's own description is none.
            read: the keys and values that a text stands for; the key itself and the text where it is None.

        Raises:
            ToolError, SpecError: the flag's value cannot be used.
        """
        default = default or next(iter(offered), "")
        is_asked = given is None and self._is_asking
        while True:
            text = self._prompt(path, default, offered, says) if is_asked else default if given is None else given
            if not text and flag and not is_asked:
                self._missing.append((path, flag))
            try:
                if not text and flag and is_asked:
                    raise usage_error(f"{path} is needed")
                if text:
                    self._take({path: text} if read is None else read(text))
                return text
            except (ToolError, SpecError) as error:
                if not is_asked:
                    raise
                fail(str(error), fix=getattr(error, "fix", ""))

    def check_needed(self) -> None:
        """Ends the questions.

        Raises:
            ToolError: no flag answers what is needed, and nobody was asked; all of it at once.
        """
        if self._missing:
            paths, flags = (", ".join(words) for words in zip(*self._missing, strict=True))
            raise usage_error(f"needed, and nothing says it: {paths}", fix=f"give {flags}")

    def _take(self, values: Answers) -> None:
        """Keeps what breaks no rule; a rule about other keys is for the end, when they are known."""
        after = {**self.answers, **values}
        try:
            self._check(after)
        except SpecError as error:
            mine = [item for item in error.problems if any(_is_about(item.path, path) for path in values)]
            if mine:
                raise SpecError(mine, origin=error.origin) from None
        self.answers = after

    def _prompt(self, path: str, default: str, offered: Sequence[str], says: str) -> str:
        key = self._keys.get(path)
        example = next(iter(key.node.get("examples", ())), "") if key else ""
        if isinstance(example, list):
            example = ",".join(example)
        hint = f" There are: {', '.join(offered)}." if offered else f" For example {example}." if example else ""
        text = f"{path}: {says or (key.says if key else '')}{hint}"
        answer = str(typer.prompt(text, default=default, show_default=bool(default), err=True)).strip()
        return "" if answer == "-" else answer


def _is_about(problem: str, path: str) -> bool:
    return problem == path or problem.startswith((f"{path}.", f"{path}["))


@dataclass(frozen=True, kw_only=True)
class GpuType:
    """Nodes with one type of GPU: how many GPUs the fullest has, and what their taints ask of pods."""

    name: str
    num_gpus: int
    tolerations: list[dict[str, str]]


@dataclass(frozen=True, kw_only=True)
class Offers:
    """What may be chosen from; empty where the cluster was not asked, or does not let this person look."""

    gpus: list[GpuType] = field(default_factory=list)
    storage_classes: list[str] = field(default_factory=list)
    """The cluster's default one first."""
    queues: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    """What could not be looked at, and why."""


def look_at_offers(api: KubeApi) -> Offers:
    """Reads nodes, storage classes and Kueue's queues of the namespace.

    Raises:
        ClusterUnreachable: the API server does not answer.
    """
    remarks: list[str] = []

    def read(path: str) -> list[dict[str, Any]]:
        try:
            return api.list(path)
        except ClusterUnreachable:
            raise
        except ClusterError as error:
            if error.status != HTTP_NOT_FOUND:
                remarks.append(str(error))
            return []

    classes = read(CLASSES)
    classes.sort(key=lambda item: (item["metadata"].get("annotations") or {}).get(DEFAULT_CLASS) != "true")
    group = api.find(f"/apis/{KUEUE}")
    base = f"/apis/{group['preferredVersion']['groupVersion']}/namespaces/{api.namespace}" if group else ""
    return Offers(
        gpus=gpu_types(read("/api/v1/nodes")),
        storage_classes=[item["metadata"]["name"] for item in classes],
        queues=[item["metadata"]["name"] for item in (read(f"{base}/localqueues") if base else [])],
        remarks=remarks,
    )


def gpu_types(nodes: list[dict[str, Any]]) -> list[GpuType]:
    """The types of GPU among nodes, those with most GPUs on a node first."""
    found: dict[str, GpuType] = {}
    for node in nodes:
        name = (node["metadata"].get("labels") or {}).get(_GPU.type_label)
        num_gpus = int(number(((node.get("status") or {}).get("allocatable") or {}).get(_GPU.resource, 0)))
        if name is None or not num_gpus:
            continue
        known = found.get(name) or GpuType(name=name, num_gpus=0, tolerations=[])
        wanted = [
            {"key": taint["key"], "operator": "Exists", "effect": taint["effect"]}
            for taint in (node.get("spec") or {}).get("taints") or ()
            if taint["effect"] != "PreferNoSchedule" and taint["key"] not in _STATE_TAINTS
        ]
        found[name] = GpuType(
            name=name,
            num_gpus=max(known.num_gpus, num_gpus),
            tolerations=known.tolerations + [item for item in wanted if item not in known.tolerations],
        )
    return sorted(found.values(), key=lambda item: -item.num_gpus)


def two_trees(answers: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The trees of the site file and of the experiment file, from values by their dotted paths."""
    site: dict[str, Any] = {}
    experiment: dict[str, Any] = {"kind": "opd"}
    for path, value in answers.items():
        set_path(site if path.partition(".")[0] in SITE_KEYS else experiment, path, value)
    return site or {"cluster": {}}, experiment  # a file that says nothing is no document


def yaml_text(title: str, tree: Mapping[str, Any], keys: Mapping[str, Key]) -> str:
    """A tree as YAML, each value under what the schema says of its key."""
    return "\n".join([*_comment(title, ""), *_lines(tree, keys, "")]) + "\n"


def check(site: str, experiment: str) -> None:
    """Reads the two texts as the tool and the charts will.

    Raises:
        SpecError: they break a rule.
    """
    with tempfile.TemporaryDirectory() as folder:
        below, above = Path(folder, "site.yaml"), Path(folder, "exp.yaml")
        below.write_text(site, encoding="utf-8")
        above.write_text(experiment, encoding="utf-8")
        try:
            [found] = load_experiments(above, site=below, env={})
        except SpecError as error:
            raise SpecError(error.problems, origin="these answers") from None
    tree = found.values.get("cluster", {})
    problems = list(image_problems(load_cluster(tree, found.spec))) if "image" in tree else []
    if problems:
        raise SpecError(problems, origin="these answers")


def secret_commands(site: Mapping[str, Any], namespace: str) -> list[str]:
    """The commands that make the Secrets which a site file names; the values come from files of the person's own."""
    cluster = site.get("cluster", {})
    secrets = cluster.get("secrets", {})
    found = []
    if "store" in secrets:
        found.append(make_secret(secrets["store"], namespace))
    for item in (secrets[name] for name in ("huggingFace", "wandb") if name in secrets):
        found.append(make_secret(item["secret"], namespace, key=item["key"]))
    found += [make_pull_secret(name, namespace) for name in cluster.get("image", {}).get("pullSecrets", [])]
    return found


def _lines(tree: Mapping[str, Any], keys: Mapping[str, Key], prefix: str, indent: str = "") -> Iterator[str]:
    for name, value in tree.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            yield f"{indent}{name}:"
            yield from _lines(value, keys, f"{path}.", indent + "  ")
            continue
        if path in keys:
            yield from _comment(keys[path].says, indent)
        yield f"{indent}{name}: {json.dumps(value, ensure_ascii=False)}"


def _comment(text: str, indent: str) -> list[str]:
    return [f"{indent}# {line}" for line in textwrap.wrap(text, WIDTH - len(indent) - 2)]
