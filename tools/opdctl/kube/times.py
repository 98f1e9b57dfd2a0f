"""Reads Kubernetes' time stamps as Unix seconds."""

from __future__ import annotations

from datetime import datetime


def unix_s(stamp: str | None) -> float:
    """Unix seconds of an RFC 3339 stamp (`2026-11-21T10:00:00Z`, with up to nine decimals); 0 where there is none."""
    return datetime.fromisoformat(stamp).timestamp() if stamp else 0.0
