"""The outcome of one check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "not checked", "MISSING"]


@dataclass(frozen=True, kw_only=True)
class Check:
    """The outcome of one check; `fix` is empty where nothing needs a fix."""

    name: str
    state: State
    message: str
    fix: str = ""


def good(name: str, message: str) -> Check:
    """Return a check that passed."""
    return Check(name=name, state="ok", message=message)


def bad(name: str, message: str, fix: str) -> Check:
    """Return a check after which the run would not start, or would wait for ever."""
    return Check(name=name, state="MISSING", message=message, fix=fix)


def warning(name: str, message: str, fix: str) -> Check:
    """Return a check after which the run may start."""
    return Check(name=name, state="warning", message=message, fix=fix)


def unseen(name: str, message: str, fix: str) -> Check:
    """Return a check that could not be made from here."""
    return Check(name=name, state="not checked", message=message, fix=fix)
