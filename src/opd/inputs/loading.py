"""What a model's files answer when they are first read: a fault that has the spec's key, and says whether a retry can help."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opd.config.errors import Problem, SpecError
from opd.errors import RunError


class ModelUnreadable(RunError):
    """A model's files cannot be read now; another attempt may find the hub or the disk back."""


@contextmanager
def reading(key: str, path: str) -> Iterator[None]:
    """While inside, what transformers raises for a model that it cannot read becomes an error that names the key.

    Args:
        key: of the spec. path: its value, a folder or a hub id.

    Raises:
        SpecError: the hub has no such model, or does not show it to this token.
        ModelUnreadable: the files cannot be reached or read.
    """
    try:
        yield
    except OSError as error:
        text = " ".join(str(error).split())
        if _is_for_good(error) or _is_for_good(error.__cause__):
            fix = "a folder that is there, OWNER/NAME of a model that this HF_TOKEN may read, or a store URL"
            raise SpecError(
                [Problem(path=key, value=path, rule=f"the model cannot be read: {text}", fix=fix)]
            ) from error
        raise ModelUnreadable(f"{key}={path}: the model cannot be read now: {text}") from error


def _is_for_good(error: BaseException | None) -> bool:
    """Whether the hub has answered, and will answer the same again."""
    # Here, so that `--plan` and `--dry-run` need no more than the tool's own packages.
    from huggingface_hub.errors import (
        GatedRepoError,
        RemoteEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    return isinstance(
        error, GatedRepoError | RemoteEntryNotFoundError | RepositoryNotFoundError | RevisionNotFoundError
    )
