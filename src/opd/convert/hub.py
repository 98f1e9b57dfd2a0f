"""Names of repositories of the Hugging Face hub."""

from huggingface_hub import hf_hub_url
from huggingface_hub.errors import HFValidationError


def name_fault(name: str) -> str:
    """Return why the hub takes no repository of this name; empty where it does."""
    try:
        hf_hub_url(name, "config.json")  # looks at the name alone
    except HFValidationError as error:
        return str(error).rstrip(".")
    return ""
