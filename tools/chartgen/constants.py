"""Generates the library chart's constants: what its templates need from Python and must not say a second time."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from chartgen.chart import stage_defaults
from chartgen.values import layout
from opd.config.base import MAX_NAME_CHARS, NAME_PATTERN
from opd.config.cluster import ALL_ADDRESSES, IDENTITIES, OWN_LINKS, rules
from opd.config.needs import (
    CONVERT_PARTS,
    CPU_STORAGE_UNITS,
    HEAD_PARTS,
    STORAGE_UNITS_A_NODE,
    STORAGE_UNITS_KEY,
    WORKER_PARTS,
    Part,
)
from opd.config.refusals import _REFUSED, _SECRET_IN_TEXT, _SECRET_NAME, _URL_CREDENTIALS
from opd.store.access import STORE_VARIABLES

TEXT = """\
{{{{- /* Generated from opd.config and uv.lock by `make schema`: do not edit. */ -}}}}
{{{{- define "opd.constants" -}}}}
{json}
{{{{- end -}}}}
"""


def constants_tpl(lock: Path) -> str:
    """The text of `_constants.tpl`."""
    return TEXT.format(json=layout(constants(lock)))


def constants(lock: Path) -> dict[str, Any]:
    """The constants as plain values."""
    return {
        "namePattern": NAME_PATTERN,
        "maxNameChars": MAX_NAME_CHARS,
        "rayVersion": locked_version(lock, "ray"),
        "secretName": _SECRET_NAME.pattern,
        "allAddresses": ALL_ADDRESSES,
        "ownLinks": OWN_LINKS,
        "identities": {
            name: {
                "annotation": item.annotation,
                "podLabels": item.pod_labels,
                "egress": [{"cidr": cidr, "ports": list(ports)} for cidr, ports in item.egress],
            }
            for name, item in IDENTITIES.items()
        },
        "podSpec": {
            "guarded": list(rules.GUARDED),
            "freeToUnset": list(rules.FREE_TO_UNSET),
            "rule": rules.POD_SPEC_RULE,
            "fix": rules.POD_SPEC_FIX,
            "unsetRule": rules.UNSET_RULE,
            "unsetFix": rules.UNSET_FIX,
        },
        "storeVariables": {key: names[0] for key, names in STORE_VARIABLES.items()},
        "urlCredentials": _URL_CREDENTIALS.pattern,
        "secretInText": _SECRET_IN_TEXT.pattern,
        "refused": [
            {"pattern": pattern, "harmless": sorted(harmless), "rule": reason} for pattern, harmless, reason in _REFUSED
        ],
        "storageUnits": {
            "aNode": STORAGE_UNITS_A_NODE,
            "cpu": CPU_STORAGE_UNITS,
            "override": rf"^[+]*{re.escape(STORAGE_UNITS_KEY)}=([0-9]+)$",
        },
        "needs": {
            role: [_part(part) for part in parts]
            for role, parts in (("worker", WORKER_PARTS), ("head", HEAD_PARTS), ("convert", CONVERT_PARTS))
        },
        "stageDefaults": stage_defaults(),
    }


def _part(part: Part) -> dict[str, Any]:
    """A row of the table of needs, as the templates multiply it."""
    return {
        "name": part.name,
        "per": part.per,
        "cpus": part.cpus,
        "leastGib": part.least_gib,
        "roomGib": part.room_gib,
    }


def locked_version(lock: Path, package: str) -> str:
    """The version of a package in uv.lock."""
    versions = {item["version"] for item in tomllib.loads(lock.read_text())["package"] if item["name"] == package}
    if len(versions) != 1:
        raise ValueError(f"{lock}: exactly one version of {package} is expected, found {sorted(versions)}")
    return str(versions.pop())
