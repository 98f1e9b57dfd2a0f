"""Defines what `cluster`'s sections share: camelCase keys, Kubernetes quantities and the objects passed through."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AliasGenerator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from opd.config import base
from opd.config.base import ENV_PATTERN, Section

QUANTITY_PATTERN = r"^[0-9]+(\.[0-9]+)?(m|k|[MGTP]|[KMGTP]i)?$"
OBJECT_NAME_PATTERN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
LABEL_VALUE_PATTERN = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
ABSOLUTE_PATH_PATTERN = r"^/[^:]*[^:/]$"

PATTERN_WORDS = {
    **base.PATTERN_WORDS,
    QUANTITY_PATTERN: "a quantity of Kubernetes, a number alone or with m, k, M, G, T, P, Ki, Mi, Gi, Ti or Pi behind it",
    OBJECT_NAME_PATTERN: "a name in Kubernetes: lower-case letters, digits, `-` and `.`, a letter or digit at both ends",
    LABEL_VALUE_PATTERN: "a label's value: letters, digits, `-`, `_` and `.`, a letter or digit at both ends",
    ABSOLUTE_PATH_PATTERN: "an absolute path, from `/` on, without `:` and without `/` at its end",
}

QuantityText = Annotated[str, Field(pattern=QUANTITY_PATTERN)]
Quantity = Annotated[int, Field(ge=0)] | QuantityText
Resources = dict[str, Quantity]
ObjectName = Annotated[str, Field(pattern=OBJECT_NAME_PATTERN, max_length=253)]
LabelValue = Annotated[str, Field(pattern=LABEL_VALUE_PATTERN, max_length=63)]
AbsolutePath = Annotated[str, Field(pattern=ABSOLUTE_PATH_PATTERN)]
EnvName = Annotated[str, Field(pattern=ENV_PATTERN)]
Seconds = Annotated[int, Field(ge=0, le=2**31 - 1)]
PositiveSeconds = Annotated[int, Field(ge=1, le=2**31 - 1)]
Gib = Annotated[float, Field(gt=0, le=2**20)]
# Objects of the Kubernetes API, handed on as they are; the API server validates them.
KubeObject = dict[str, Any]
KubeObjects = tuple[KubeObject, ...]


class ClusterSection(Section):
    """A group of keys under `cluster`: as strict as the spec's own sections, spelled the way Kubernetes people write."""

    model_config = ConfigDict(alias_generator=AliasGenerator(alias=to_camel))
