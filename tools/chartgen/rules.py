"""Generates the charts' rules between keys from the tables of `opd.config`, and the defaults that those rules read."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator

from chartgen.gotemplate import bare, go
from opd.config.base import Kind
from opd.config.cluster.rules import RULES as CLUSTER_RULES
from opd.config.defaults import DEFAULTS, RUNS, Default
from opd.config.expressions import parse, parse_message
from opd.config.rule import Rule
from opd.config.rules import RULES, SIZES

ALL_RULES = (*CLUSTER_RULES, *RULES)
TEXT = """\
{{- /* Generated from opd.config by `make schema`: do not edit. */ -}}

{{- /* The values as JSON, with the defaults that follow from device and recipe, and the rules' own names. */ -}}
{{- define "opd.filled" -}}
{{- $v := set (deepCopy .Values) "kind" .Chart.Name -}}
%s
{{- toJson $v -}}
{{- end -}}

{{- /* The rules between keys, word for word those of the tool and the trainer. */ -}}
{{- define "opd.checkRules" -}}
{{- $v := include "opd.filled" . | fromJson -}}
{{- $_ := set $v "pods" (include "opd.pods" . | fromJson) -}}
%s
{{- end -}}
"""


def rules_tpl() -> str:
    """The text of `_rules.tpl`."""
    filled = [*(_fill(default) for default in DEFAULTS if default.text and default.kinds == RUNS), *map(_name, SIZES)]
    checks = [
        line
        for kinds in dict.fromkeys(rule.kinds for rule in ALL_RULES)
        for line in _only(kinds, [line for rule in ALL_RULES if rule.kinds == kinds for line in _check(rule)])
    ]
    return TEXT % ("\n".join(_only(RUNS, filled)), "\n".join(checks))


def paths(rule: Rule) -> set[str]:
    """Every dotted key that a rule reads."""
    texts = [parse(text) for text in (rule.when, rule.value, rule.each) if text is not None]
    return {path for node in (*texts, *map(parse_message, (rule.key, rule.rule, rule.fix))) for path in _paths(node)}


def _paths(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Attribute | ast.Name):
        yield ast.unparse(node)
        return
    for child in ast.iter_child_nodes(node):
        if not (isinstance(node, ast.Call) and child is node.func):
            yield from _paths(child)


def _fill(default: Default) -> str:
    section, _, key = default.path.rpartition(".")
    value = f"{{{{- $_ := set $v.{section} {json.dumps(key)} {go(parse(default.text))} -}}}}"
    return f'{{{{- if kindIs "invalid" {go(parse(default.path))} -}}}}{value}{{{{- end -}}}}'


def _name(name: str) -> str:
    return f"{{{{- $_ := set $v {json.dumps(name)} {go(parse(SIZES[name]))} -}}}}"


def _only(kinds: tuple[Kind, ...], lines: list[str]) -> list[str]:
    return [f"{{{{- if has $v.kind (list {' '.join(map(json.dumps, kinds))}) -}}}}", *lines, "{{- end -}}"]


def _check(rule: Rule) -> list[str]:
    texts = {
        name: go(parse_message(text)) for name, text in (("key", rule.key), ("rule", rule.rule), ("fix", rule.fix))
    }
    value = go(parse(rule.key if rule.value is None else rule.value))
    lines = [
        f"{{{{- if {bare(parse(rule.when))} -}}}}",
        f'{{{{- include "opd.refuse" (dict "key" {texts["key"]} "value" {value}',
        f'  "rule" {texts["rule"]}',
        f'  "fix" {texts["fix"]}) -}}}}',
        "{{- end -}}",
    ]
    if rule.each is None:
        return lines
    return [f"{{{{- range $index, $item := {bare(parse(rule.each))} -}}}}", *lines, "{{- end -}}"]
