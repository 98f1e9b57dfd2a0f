"""Makes a first site file and experiment file from a few answers; each key stands under its description in the schema."""

from __future__ import annotations

import json
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from opd.config import SpecError
from opd.config.cluster.rules import RULES, load_cluster, names
from opd.config.keys import Key
from opd.config.load import SITE_KEYS
from opd.config.rule import broken
from opd.config.tree import set_path
from opdctl.chart.values import load_experiments
from opdctl.kube.secrets import make_pull_secret, make_secret

WIDTH = 118


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
    if "image" in tree:  # the charts' own rules about images
        about = [rule for rule in RULES if rule.chart_only and rule.key == "cluster.image.ref"]
        if problems := list(broken(about, names(load_cluster(tree, found.spec), found.spec))):
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
