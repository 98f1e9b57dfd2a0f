"""Site files: what every run on a cluster has in common, as a tree that goes under an experiment's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from opd.config.errors import Problem, SpecError
from opd.config.reader import Document

SITE_VARIABLE = "OPDCTL_SITE"  # the file's path, for tool and launcher
SITE_KEYS = ("cluster", "store", "env")


def over_site(experiment: Document, site: Document, *, origin: str) -> Document:
    """The experiment's document over a site file's; the experiment's keys win.

    Args:
        origin: name of the site file, for errors and as the source of its keys.

    Raises:
        SpecError: the site file holds something of an experiment.
    """
    for key, value in site.tree.items():
        if key not in SITE_KEYS:
            rule = f"a site file holds what every run on a cluster has in common: {', '.join(SITE_KEYS)}"
            fix = "move the key into the experiment; for opdctl, a file whose keys go over the experiment's is given by -f"
            raise SpecError([Problem(path=key, value=value, rule=rule, fix=fix)], origin=origin)
    sources = {path: f"{origin}, {line}" for path, line in site.sources.items()}
    return replace(experiment, tree=merge(site.tree, experiment.tree), sources={**sources, **experiment.sources})


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Maps merged key by key, everything else replaced."""
    out = dict(below)
    for key, value in above.items():
        old = out.get(key)
        out[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return out
