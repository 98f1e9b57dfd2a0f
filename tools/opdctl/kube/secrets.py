"""Commands that make a run's Secrets; the values come from the user's own files."""

from __future__ import annotations


def make_secret(name: str, namespace: str, *, key: str = "") -> str:
    """Return the command for a Secret with one key; without a key the Secret's keys become variables."""
    if key:
        words = f"--from-file={key}=...   # a file without a line break"
    else:
        words = "--from-env-file=store.env   # lines NAME=VALUE: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY"
    return f"kubectl create secret generic {name} -n {namespace} {words}"


def make_pull_secret(name: str, namespace: str) -> str:
    """Return the command for a Secret that pulls images."""
    words = "--docker-server=... --docker-username=... --docker-password=..."
    return f"kubectl create secret docker-registry {name} -n {namespace} {words}"
