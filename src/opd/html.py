"""What a browser may do with a page of ours: run the page's own scripts, named by their hashes, and nothing else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence


def policy(scripts: Sequence[str] = ()) -> str:
    """The Content-Security-Policy of a page with these inline scripts: each by its hash, nothing from any network."""
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    rules = ["default-src 'none'", "style-src 'unsafe-inline'", "img-src data:"]
    rules += [f"script-src {allowed}"] if scripts else []
    return "; ".join(rules)
