"""Access of a run's processes to its object store: endpoint, region and addressing style, as environment variables.

An experiment has them in `store` (or as variables in `env`); credentials come from the environment or a Secret alone.
In a pod the mounted file is final. On a person's machine the shell's endpoint, region and addressing win over the file's.
"""

import os
import re
from collections.abc import Mapping, MutableMapping
from typing import Any, NamedTuple

ADDRESSING_VARIABLE = "OPD_S3_ADDRESSING"  # botocore has none of its own for it
# Key of `store` -> its variable, then other names of the same setting. S3's own endpoint variable does not redirect AWS's
# other services (STS, which gives a workload its credentials).
STORE_VARIABLES: dict[str, tuple[str, ...]] = {
    "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "region": ("AWS_DEFAULT_REGION", "AWS_REGION"),
    "addressing": (ADDRESSING_VARIABLE,),
}
# Protocols whose fsspec package turns `mode="create"` into an atomic precondition of the service (s3fs: If-None-Match: *;
# gcsfs: ifGenerationMatch=0; adlfs: no overwrite).
CREATE_ONLY_PROTOCOLS = ("s3", "gs", "az")
# A store's URL; a text that is not meant as a URL is a folder's path.
_URL = rf"^(({'|'.join(CREATE_ONLY_PROTOCOLS)})://[^/\s]|file://.)"
_MEANT_AS_URL = rf"(?i)://|^[a-z][a-z0-9+.-]*:/|^({'|'.join(CREATE_ONLY_PROTOCOLS)}|file)(:|//)"
URL_RULE = (
    f"a store is PROTOCOL://BUCKET/PREFIX with one of {', '.join(CREATE_ONLY_PROTOCOLS)} in lower case, file://FOLDER, or a "
    "folder's path that does not look like a URL"
)
URL_FIX = "write s3://BUCKET/PREFIX (an S3 server other than AWS's goes into store.endpoint), or a folder's path"
SILENCE_S = 20.0  # longest silence of an S3 server within one try


class StoreAddress(NamedTuple):
    """A store's URL, and an experiment's variables for its access."""

    url: str
    variables: Mapping[str, str] = {}


def is_usable(url: str) -> bool:
    """Return True for a store's URL and for a folder's path."""
    return re.search(_URL, url) is not None or re.search(_MEANT_AS_URL, url) is None


def is_store_url(path: str) -> bool:
    """Return True if `path` names an object or prefix of an object store (not a local path or a Hugging Face id)."""
    return path.partition("://")[0] in CREATE_ONLY_PROTOCOLS and "://" in path


def address_of(experiment: Mapping[str, Any]) -> StoreAddress | None:
    """Return the address of the store that an experiment (its tree) names, if any."""
    url = (experiment.get("store") or {}).get("url")
    return None if url is None else StoreAddress(url, {**(experiment.get("env") or {}), **_variables(experiment)})


def _variables(experiment: Mapping[str, Any]) -> dict[str, str]:
    store = experiment.get("store") or {}
    return {names[0]: store[key] for key, names in STORE_VARIABLES.items() if store.get(key)}


def under(variables: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with an experiment's variables below it: the environment wins under any name of a setting."""
    same = {name: names for names in STORE_VARIABLES.values() for name in names}
    said = {name for name in variables if any(environment.get(other) for other in same.get(name, (name,)))}
    return {**{name: value for name, value in variables.items() if name not in said}, **environment}


def apply_experiment(
    experiment: Mapping[str, Any], environment: MutableMapping[str, str] = os.environ, *, is_final: bool
) -> None:
    """Set the variables of an experiment's `env` and `store` in this process, before anything opens a store.

    Args:
        is_final: in a pod: `store` wins over the container's variables, too; on a person's machine the shell's win.
    """
    environment.update(experiment.get("env") or {})
    store = _variables(experiment)
    environment.update(store if is_final else under(store, environment))


def storage_options(url: str, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return fsspec's options for a URL from the environment (`os.environ` by default); only S3 has any.

    They are explicit, since fsspec keeps one client for equal options.
    """
    if not url.startswith("s3://"):
        return {}
    environment = os.environ if environment is None else environment
    said = {key: next(filter(None, map(environment.get, names)), None) for key, names in STORE_VARIABLES.items()}
    # One try must end soon, since the store itself retries: botocore's own patience is 60 s x 5 a connection.
    config: dict[str, Any] = {"connect_timeout": 5, "retries": {"total_max_attempts": 1}, "read_timeout": SILENCE_S}
    if said["addressing"]:
        config["s3"] = {"addressing_style": said["addressing"]}
    options = {"config_kwargs": config, "endpoint_url": said["endpoint"]}
    if said["region"]:
        options["client_kwargs"] = {"region_name": said["region"]}
    return options
