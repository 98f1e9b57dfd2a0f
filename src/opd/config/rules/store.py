"""Where results go, of every kind of file."""

from __future__ import annotations

from opd.config.base import FILE_KINDS
from opd.config.rule import Rule
from opd.store.access import MEANT_AS_URL_PATTERN, URL_FIX, URL_PATTERN, URL_RULE

STORE = (
    Rule(
        key="store.url",
        when=f"store.url is not None and matches(store.url, {MEANT_AS_URL_PATTERN!r}) "
        f"and not matches(store.url, {URL_PATTERN!r})",
        rule=URL_RULE,
        fix=URL_FIX,
        kinds=FILE_KINDS,
    ),
)
