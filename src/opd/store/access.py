"""How a run's processes reach its object store: endpoint, region and addressing style, as environment variables.

An experiment says them in `store` (or as variables in `env`); credentials come from the environment or a Secret alone. All
programs of a run, and the tool, make their clients by `storage_options`, so that all of them ask the same server.

In a pod the mounted file is final. On a person's machine the shell's endpoint, region and addressing win over the file's.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping, MutableMapping
from typing import Any, NamedTuple

ADDRESSING_VARIABLE = "OPD_S3_ADDRESSING"  # botocore has none of its own for it
# Key of `store` -> the variable that is set for it, then others that say the same. S3's own endpoint variable leaves AWS's
# other services (STS, which gives a workload its credentials) where they are.
STORE_VARIABLES: dict[str, tuple[str, ...]] = {
    "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "region": ("AWS_DEFAULT_REGION", "AWS_REGION"),
    "addressing": (ADDRESSING_VARIABLE,),
}
S3_PROTOCOLS = ("s3", "s3a")
# Protocols whose fsspec package passes `mode="create"` on to an atomic precondition of the service.
# (s3fs: If-None-Match: *; gcsfs: ifGenerationMatch=0; adlfs: no overwrite), and the service each one belongs to.
CREATE_ONLY_PROTOCOLS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "az": "az", "abfs": "az"}
# Of a store's URL, in the syntax that Python and Go share; a folder's path is what is not meant as a URL.
URL_PATTERN = rf"^(({'|'.join(CREATE_ONLY_PROTOCOLS)})://[^/\s]|file://.)"
MEANT_AS_URL_PATTERN = rf"(?i)://|^[a-z][a-z0-9+.-]*:/|^({'|'.join(CREATE_ONLY_PROTOCOLS)}|file)(:|//)"
URL_RULE = (
    f"a store is PROTOCOL://BUCKET/PREFIX with one of {', '.join(CREATE_ONLY_PROTOCOLS)} in lower case, file://FOLDER, or a "
    "folder's path that does not look like a URL"
)
URL_FIX = "write s3://BUCKET/PREFIX (an S3 server other than AWS's goes into store.endpoint), or a folder's path"
# Protocol -> (its fsspec package, the extra of `opd` that brings it); the images have both.
EXTRAS = {
    **dict.fromkeys(("gs", "gcs"), ("gcsfs", "gcs")),
    **dict.fromkeys(("az", "abfs", "abfss"), ("adlfs", "azure")),
}
# One try must end soon, since the retries are the store's: botocore's own patience would be 60 s x 5 a connection.
S3_CLIENT_CONFIG = {"connect_timeout": 5, "retries": {"total_max_attempts": 1}}
# For as long an S3 server may send nothing within one try.
SILENCE_S = 20.0


class StoreAddress(NamedTuple):
    """A store's URL, and the variables that an experiment gives for reaching it."""

    url: str
    variables: Mapping[str, str] = {}


def is_usable(url: str) -> bool:
    """Whether a store's URL is one, or a folder's path."""
    return re.search(URL_PATTERN, url) is not None or re.search(MEANT_AS_URL_PATTERN, url) is None


def is_store_url(path: str) -> bool:
    """Whether `path` names something in an object store (and not a local path or a Hugging Face id)."""
    return path.partition("://")[0] in CREATE_ONLY_PROTOCOLS and "://" in path


def address_of(experiment: Mapping[str, Any]) -> StoreAddress | None:
    """The address of the store that an experiment (its tree) names; None where it names none."""
    store = experiment.get("store") or {}
    if "url" not in store:
        return None
    return StoreAddress(store["url"], {**(experiment.get("env") or {}), **store_variables(store)})


def store_variables(store: Mapping[str, Any]) -> dict[str, str]:
    """The variables that the keys of `store` stand for."""
    return {names[0]: store[key] for key, names in STORE_VARIABLES.items() if store.get(key)}


def said_of(key: str, environment: Mapping[str, str]) -> str | None:
    """What the variables say of a key of `store`, under the first of its names that is set."""
    return next((value for name in STORE_VARIABLES[key] if (value := environment.get(name))), None)


def under(variables: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with an experiment's variables below it: what it says of the same thing, under any name, wins."""
    same = {name: names for names in STORE_VARIABLES.values() for name in names}
    said = {name for name in variables if any(environment.get(other) for other in same.get(name, (name,)))}
    return {**{name: value for name, value in variables.items() if name not in said}, **environment}


def apply_experiment(
    experiment: Mapping[str, Any], environment: MutableMapping[str, str] | None = None, *, is_final: bool
) -> None:
    """Set the variables of an experiment's `env` and `store` in this process, before anything opens a store.

    Args:
        environment: `os.environ` by default.
        is_final: in a pod: the file wins over the container. On a person's machine `env` does too, and the shell's
            endpoint, region and addressing stay, under whichever name.
    """
    environment = os.environ if environment is None else environment
    environment.update(experiment.get("env") or {})
    store = store_variables(experiment.get("store") or {})
    environment.update(store if is_final else under(store, environment))


def require_package(url: str) -> None:
    """Nothing, where the package behind a URL's protocol is installed.

    Raises:
        ImportError: it is not; the text names the extra to install.
    """
    protocol = url.partition("://")[0]
    package, extra = EXTRAS.get(protocol, ("", ""))
    if package and importlib.util.find_spec(package) is None:
        raise ImportError(f"{protocol}:// needs {package}, which is not installed: pip install 'opd[{extra}]'")


def open_url(url: str, mode: str) -> Any:
    """fsspec's context manager of the file behind a URL, reached as the environment says.

    Raises:
        ImportError: the protocol's package is not installed.
    """
    import fsspec

    require_package(url)
    return fsspec.open(url, mode, **storage_options(url))


def storage_options(
    url: str, environment: Mapping[str, str] | None = None, *, silence_s: float = SILENCE_S
) -> dict[str, Any]:
    """fsspec's options for a URL, from the environment (`os.environ` by default); none but for S3.

    Given explicitly, and not left to the client library, since fsspec keeps one client for equal options.
    """
    if url.partition("://")[0] not in S3_PROTOCOLS:
        return {}
    environment = os.environ if environment is None else environment
    config: dict[str, Any] = {**S3_CLIENT_CONFIG, "read_timeout": silence_s}
    if addressing := said_of("addressing", environment):
        config["s3"] = {"addressing_style": addressing}
    options: dict[str, Any] = {"config_kwargs": config}
    if endpoint := said_of("endpoint", environment):
        options["endpoint_url"] = endpoint
    if region := said_of("region", environment):
        options["client_kwargs"] = {"region_name": region}
    return options
