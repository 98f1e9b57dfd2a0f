"""Generates the charts' rules between keys from the tables of `opd.config`, and the defaults that those rules read."""

from __future__ import annotations

import json
from itertools import chain, groupby

from chartgen.gotemplate import bare, go
from opd.config.base import KINDS, Kind
from opd.config.cluster.rules import RULES as CLUSTER_RULES
from opd.config.defaults import DEFAULTS, RUNS, SAMPLES, Default
from opd.config.expressions import parse, parse_message
from opd.config.rule import Rule
from opd.config.rules import RULES
from opd.config.rules.store import STORE
from opd.config.rules.terms import SIZES

TEXT = """\
{{- /* Generated from opd.config by `make schema`: do not edit. */ -}}

{{- /* The values as JSON, with the defaults that follow from device and recipe, and the rules' own names. */ -}}
{{- define "opd.filled" -}}
{{- $v := set (deepCopy .Values) "kind" .Chart.Name -}}
%s
{{- toJson $v -}}
{{- end -}}

{{- /* The rules between keys, word for word those of the tool and the trainer: of each run, then of the cluster's part. */ -}}
{{- define "opd.checkRules" -}}
{{- range include "opd.runs" . | fromJsonArray -}}
{{- $v := include "opd.filled" . | fromJson -}}
%s
{{- end -}}
{{- $v := include "opd.whole" . | fromJson -}}
%s
{{- end -}}
"""


def rules_tpl() -> str:
    """The text of `_rules.tpl`."""
    needed = [default for default in DEFAULTS if default.text and default.kinds in (RUNS, SAMPLES)]
    fills = [
        _only(kinds, [_fill(default) for default in needed if default.kinds == kinds]) for kinds in (RUNS, SAMPLES)
    ]
    filled = [*chain(*fills), *_only(RUNS, list(map(_name, SIZES)))]
    of_run = _only(RUNS, _grouped(RULES, under="$v.under"))
    return TEXT % tuple("\n".join(lines) for lines in (filled, of_run, _grouped((*STORE, *CLUSTER_RULES))))


def _action(text: str) -> str:
    return f"{{{{- {text} -}}}}"


def _fill(default: Default) -> str:
    section, _, key = default.path.rpartition(".")
    fill = _action(f'$_ := set $v.{section} "{key}" {go(parse(default.text))}')
    when = f"{default.path} is None" + (f" and {section}.{default.beside} is not None" if default.beside else "")
    return _action(f"if {go(parse(when)).removeprefix('(').removesuffix(')')}") + fill + _action("end")


def _name(name: str) -> str:
    return _action(f'$_ := set $v "{name}" {go(parse(SIZES[name]))}')


def _grouped(rules: tuple[Rule, ...], under: str = "") -> list[str]:
    """The checks of a table in its order, neighbours of the same kinds together; `under` is what stands before their keys."""
    return [
        line
        for kinds, same in groupby(rules, key=lambda rule: rule.kinds)
        for line in _only(kinds, [line for rule in same for line in _check(rule, under)])
    ]


def _only(kinds: tuple[Kind, ...], lines: list[str]) -> list[str]:
    if set(KINDS) <= set(kinds):
        return lines
    return [_action(f"if has $v.kind (list {' '.join(map(json.dumps, kinds))})"), *lines, _action("end")]


def _check(rule: Rule, under: str) -> list[str]:
    key, sentence, fix = (go(parse_message(text)) for text in (rule.key, rule.rule, rule.fix))
    value = go(parse(rule.key if rule.value is None else rule.value))
    above = f'"under" {under} ' if under else ""
    refuse = _action(
        f'include "opd.refuse" (dict {above}"key" {key} "value" {value}\n  "rule" {sentence}\n  "fix" {fix})'
    )
    lines = [_action(f"if {bare(parse(rule.when))}"), refuse, _action("end")]
    if rule.each is None:
        return lines
    return [_action(f"range $index, $item := {bare(parse(rule.each))}"), *lines, _action("end")]
