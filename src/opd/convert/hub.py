"""Upload of a converted folder to a repository of the Hugging Face hub."""

import os
from pathlib import Path

from huggingface_hub import HfApi, hf_hub_url
from huggingface_hub.errors import HFValidationError

from opd.convert.errors import BadRequest, ConvertError, say
from opd.redaction import redact

TOKEN_VARIABLE = "HF_TOKEN"
_OF_MODELS = ["model*.safetensors*", "tokenizer*", "vocab*", "merges.txt", "chat_template*"]


def name_fault(name: str) -> str:
    """Return why the hub takes no repository of this name; empty where it does."""
    try:
        hf_hub_url(name, "config.json")  # looks at the name alone
    except HFValidationError as error:
        return str(error).rstrip(".")
    return ""


def hub_token(repository: str) -> str:
    """Return the environment's token.

    Raises:
        BadRequest: there is none, or the hub takes no repository of this name.
    """
    if fault := name_fault(repository):
        raise BadRequest(f"convert.push_to_hub={repository}: {fault}. Choose another name")
    if token := os.environ.get(TOKEN_VARIABLE, "").strip():  # a file's line break is no part of it
        return token
    raise BadRequest(
        f"convert.push_to_hub needs {TOKEN_VARIABLE} in the environment: set it to a token that may write; for pods name a "
        "Secret with cluster.secrets.huggingFace"
    )


def push(folder: Path, repository: str, *, published: str, without: str) -> None:
    """Upload a folder; a repository that does not exist becomes a private one.

    Args:
        published: the place of the whole folder, for the error.
        without: the file that stays here, because it names this machine's paths.

    Raises:
        ConvertError: the hub did not take it.
    """
    api = HfApi(token=hub_token(repository))
    say(f"uploading to {repository}")
    try:
        api.create_repo(repository, private=True, exist_ok=True)
        # Of an earlier upload a loader would read files that this folder lacks; a user's own files stay.
        api.upload_folder(repo_id=repository, folder_path=folder, ignore_patterns=without, delete_patterns=_OF_MODELS)
    except Exception as error:  # the hub's client raises many types
        raise ConvertError(
            f"{published} is whole, but the hub did not take {repository} ({type(error).__name__}: "
            f"{redact(' '.join(str(error).split()))}): give an {TOKEN_VARIABLE} that may write there, or another "
            "convert.push_to_hub, and start again"
        ) from error
