"""The names of `opd.redaction` that the tool uses."""

from opd.redaction import PLACEHOLDER, REDACTED, is_secret_name, one_line, redact, redact_tree

__all__ = ["PLACEHOLDER", "REDACTED", "is_secret_name", "one_line", "redact", "redact_tree"]
