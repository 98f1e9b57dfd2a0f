"""Model folders: there, with a config, a tokenizer and every weight file that their index names."""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from opd.agent.environments import toy_models
from opd.data import toy
from opd.data.files import near_first
from opd.experiment.errors import Problem, SpecError
from opd.experiment.pipeline import OF_A_STAGE
from opd.shapes import shape_of
from opd.store.access import CREATE_ONLY_PROTOCOLS, is_store_url

# What the hub takes for the name of a repository; anything else can only be a folder.
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
_READ = ("generation_config.json", "tokenizer_config.json", "tokenizer.json")
# In transformers' order.
_LOADED = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
_SHARD = re.compile(r"(?:model|pytorch_model)-\d+-of-\d+\.(?:safetensors|bin)")
_ADAPTERS = {"adapter_model.safetensors", "adapter_model.bin", "adapter_config.json"}
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".onnx", ".h5", ".msgpack", ".tflite", ".ot")
_QUANTIZED = ("quantization_config", "compression_config")
_DEQUANTIZE = "use the checkpoint in bf16, or load this one with transformers, dequantized, and save_pretrained it"
_DENSE = ("llama", "mistral", "qwen2", "qwen3")  # types whose tensors have these names and sizes
_WRITERS = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
_FORMS = "OWNER/NAME of the hub, the folder's path"
_COPY = "copy the model again, or download it with `hf download ID --local-dir FOLDER`"
_FROM_GGUF = (
    "the model's folder in bf16, or one made of the GGUF file as `python -m opd.data.fetch_smollm2` makes SmolLM2's"
)
_MERGE = "AutoPeftModelForCausalLM.from_pretrained(FOLDER).merge_and_unload().save_pretrained(NEW) of peft, and copy the tokenizer's files"
_NUM_SHOWN = 3
_HUB_TIMEOUT_S = 10.0

Fault = tuple[str, str]
"""Rule and fix."""


def _bundled() -> dict[str, Path]:
    return {**toy.MODELS, **toy_models()}


def is_hub_id(path: str) -> bool:
    """Return True if a model of this name may be one of the hub."""
    return bool(_HUB_ID.fullmatch(path))


def model_problems(models: Sequence[tuple[str, str]], *, may_be_quantized: bool = False) -> Iterator[Problem]:
    """Yield what is wrong with (key, path) of models on this machine; hub ids and store URLs are left to their loaders.

    Args:
        may_be_quantized: they are read by vLLM alone.
    """
    for key, path in models:
        for rule, fix in _faults(path, may_be_quantized=may_be_quantized):
            yield Problem(path=key, value=path, rule=rule, fix=fix)


def _faults(path: str, *, may_be_quantized: bool) -> Iterable[Fault]:
    folder = Path(path)
    if "://" in path:
        bundled = [name for name in _bundled() if name.startswith(f"{path.partition('://')[0]}://")]
        if bundled and path not in bundled:
            return [("this is no bundled model", " or ".join(bundled))]
        return address_faults(path, "no model is", _FORMS, known=tuple(bundled))
    if folder.suffix == ".gguf" or (any(folder.glob("*.gguf")) and not (folder / "config.json").exists()):
        return [("GGUF weights are quantized and are not trained", _FROM_GGUF)]
    if folder.is_dir():
        return _folder_faults(folder, may_be_quantized=may_be_quantized)
    if folder.exists():
        return [("this is a file; a model is a folder", str(folder.parent))]
    if is_hub_id(path):
        return _hub_faults(path)
    fix = "a folder that is there, OWNER/NAME of a model on the hub, or a store URL"
    return [("there is no such folder; a Hugging Face id is NAME or OWNER/NAME", fix)]


def _hub_faults(path: str) -> Iterator[Fault]:
    """Yield why a name is no model of the hub: its owner is a folder here, or an offline cache lacks it."""
    owner, _, name = path.rpartition("/")
    if owner and Path(owner).is_dir():
        held = near_first(name, [folder.name for folder in Path(owner).iterdir() if folder.is_dir()])
        rule = f"there is no such folder; the folder {owner} has {held or 'no folders'}"
        yield rule, f"a folder that is there; of the hub: `hf download {path} --local-dir FOLDER`, and name FOLDER"
    elif find_spec("huggingface_hub"):  # the tool alone runs without it
        from huggingface_hub import constants, try_to_load_from_cache

        if constants.HF_HUB_OFFLINE and not isinstance(try_to_load_from_cache(path, "config.json"), str):
            rule = f"HF_HUB_OFFLINE is set, and the cache {constants.HF_HUB_CACHE} does not have this model"
            yield rule, "a folder that is there, a model of the cache, or unset HF_HUB_OFFLINE"


def address_faults(path: str, what: str, forms: str, known: tuple[str, ...]) -> list[Fault]:
    """Return (rule, fix) of an address that is no store's; nothing for any other path.

    Args:
        what: "no model is" read there. forms: of other paths, for the fix. known: begins of addresses that come from elsewhere.
    """
    known += (OF_A_STAGE, "hdfs://")  # there by then; copied by verl itself
    if "://" not in path or is_store_url(path) or path.startswith(known):
        return []
    stores = ", ".join(f"{name}://" for name in CREATE_ONLY_PROTOCOLS)
    return [(f"{what} read from {path.partition('://')[0]}://", f"{forms}, or the URL of a copy in a store ({stores})")]


def config_of_folder(path: str) -> Any:
    """Return the config of a bundled model or a folder on this machine; None for any other, or an unreadable one."""
    try:
        return json.loads((Path(_bundled().get(path, path)) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _folder_faults(folder: Path, *, may_be_quantized: bool) -> Iterator[Fault]:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        yield from _config_faults(config, may_be_quantized=may_be_quantized)
    except FileNotFoundError:
        inside = sorted(p.parent.name for p in folder.glob("*/config.json"))
        more, fix = f"; {', '.join(inside[:_NUM_SHOWN])} inside it has" if inside else "", _COPY
        if adapters := _ADAPTERS & {file.name for file in folder.iterdir()}:
            more, fix = f": it holds adapters ({min(adapters)})", f"merge them into their base model: {_MERGE}"
        yield f"it has no config.json, so it is no model{more}", fix
        return
    except (OSError, ValueError) as error:
        yield f"its config.json cannot be read: {error}", _COPY
    names = {file.name for file in folder.iterdir()}
    yield from name_faults(names)
    for name in [name for name in _READ if name in names]:
        try:
            json.loads((folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            yield f"its {name} cannot be read: {error}", _COPY
    for name in [name for name in _LOADED if name in names][:1]:
        yield from ((rule, _COPY) for rule in _weight_faults(folder, name, config))


def _config_faults(config: Any, *, may_be_quantized: bool) -> Iterator[Fault]:
    """Yield why a config.json means no model that can be trained or read token by token."""
    if not isinstance(config, dict):
        yield "its config.json is no JSON object", _COPY
        return
    parts = [config, *(part for part in (config.get("text_config"),) if isinstance(part, dict))]
    found = next((part[key] for part in parts for key in _QUANTIZED if part.get(key)), None)
    if found is not None and not may_be_quantized:
        method = found.get("quant_method") if isinstance(found, dict) else found
        yield f"its weights are quantized ({method}), and FSDP would shard them without their scales", _DEQUANTIZE
    named = config.get("architectures")
    if isinstance(named, list) and named and not any(str(name).endswith(_WRITERS) for name in named):
        rule = f"it is a {named[0]}, which has no head that writes text: transformers would give it a random one"
        yield rule, "a causal language model, whose architecture ends in ForCausalLM"


def name_faults(names: Collection[str]) -> Iterator[Fault]:
    """Yield why transformers finds no whole model in a folder, or a repository of the hub, with these files."""
    if not any(name in names for name in _TOKENIZERS):
        fix = "copy the tokenizer's files from the model's base, or download the model again"
        yield f"it has no tokenizer (none of {', '.join(_TOKENIZERS)})", fix
    if "adapter_config.json" in names:
        rule = "it has an adapter_config.json, so transformers loads that adapter's base model"
        yield rule, f"remove the adapter's files, or merge them: {_MERGE}"
    if any(name in names for name in _LOADED):
        return
    kinds = [
        ("adapters only", _ADAPTERS, f"merge them into their base model: {_MERGE}"),
        (
            "consolidated weights only (Mistral's or Llama's own layout)",
            {n for n in names if n.startswith("consolidated")},
            "the same model in Hugging Face's layout: `hf download ID` without --include, or a repository whose name ends in -hf",
        ),
        ("shards without the index that names them (*.index.json)", {n for n in names if _SHARD.fullmatch(n)}, _COPY),
        ("GGUF only", {n for n in names if n.endswith(".gguf")}, _FROM_GGUF),
    ]
    found = ((f"; it has {kind}: {min(has)}", fix) for kind, files, fix in kinds if (has := files & set(names)))
    more, fix = next(found, ("", _COPY))
    yield f"it has no weights that transformers loads ({' or '.join(_LOADED)}){more}", fix


def needed_files(names: Collection[str]) -> list[str]:
    """Return the files of a hub's repository that a run reads: none in a folder, no second copy of the weights."""
    loaded = next((name for name in _LOADED if name in names), "")
    suffix = Path(loaded.removesuffix(".index.json")).suffix
    of_weights = [name for name in names if name.endswith(suffix) and _SHARD.fullmatch(name)]
    weights = {loaded, *(of_weights if loaded.endswith(".json") else ())}
    return sorted(n for n in names if "/" not in n and (n in weights or not n.endswith(_WEIGHT_SUFFIXES)))


def fetch_model(key: str, path: str, revision: str | None) -> str | None:
    """Return the folder of a hub id at a pinned revision, with only the files that a run reads; None if none is pinned.

    The repository's list of files is judged in both cases. Without a revision an unreachable hub is no error: the model
    may be in the cache of verl's loaders.

    Raises:
        SpecError: the repository holds no model that can be loaded. ModelUnreadable: see `reading`.
    """
    if revision is None and ("://" in path or not is_hub_id(path) or Path(path).exists()):
        return None
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    from opd.inputs.model_files import reading

    with reading(key, path):
        try:
            info = HfApi().model_info(path, revision=revision, timeout=_HUB_TIMEOUT_S)
        except Exception as error:  # the hub's client raises many types
            has_answered = isinstance(error, HfHubHTTPError) and getattr(error.response, "status_code", 500) < 500
            if revision is None and not has_answered:
                return None
            raise
        names = [one.rfilename for one in info.siblings or ()]
        if problems := [Problem(path=key, value=path, rule=rule, fix=fix) for rule, fix in name_faults(names)]:
            raise SpecError(problems)
        return revision and str(snapshot_download(path, revision=info.sha, allow_patterns=needed_files(names)))


def _weight_faults(folder: Path, name: str, config: Any) -> Iterator[str]:
    """Yield what is wrong with the weights that transformers loads by the file or index of this name."""
    named = {name}
    if name.endswith(".json"):
        try:
            named = set(json.loads((folder / name).read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError) as error:
            yield f"its {name} cannot be read: {type(error).__name__}: {error}"
            return
    if missing := sorted(file for file in named if not (folder / file).exists()):
        shown = ", ".join(missing[:_NUM_SHOWN]) + (", ..." if len(missing) > _NUM_SHOWN else "")
        yield f"{len(missing)} of the {len(named)} weight files of its {name} are not there: {shown}"
    shapes, is_whole = dict[str, list[int]](), not missing
    tensor_files = [file for file in sorted(named - set(missing)) if file.endswith(".safetensors")]
    for file in tensor_files if find_spec("safetensors") else ():  # the tool alone runs without it
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(folder / file, "np") as tensors:
                shapes |= {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            is_whole = False
            yield f"its {file} cannot be read, or is cut off: {error}"
    if is_whole:
        yield from _misfits(shapes, config)


def _misfits(shapes: Mapping[str, list[int]], config: Any) -> Iterator[str]:
    """Yield how the tensors differ from the sizes in config.json: transformers ends in a traceback, or makes up what is missing."""
    if not isinstance(config, dict) or config.get("model_type") not in _DENSE:
        return
    if "model.embed_tokens.weight" not in shapes or any(key in config for key in _QUANTIZED):
        return
    try:
        sizes = shape_of(config, "config.json")
    except (TypeError, ValueError):  # a size is missing, or no number
        return
    wanted = {"model.embed_tokens.weight": [sizes.vocab_rows, sizes.hidden]}
    wanted |= {} if sizes.tied else {"lm_head.weight": [sizes.vocab_rows, sizes.hidden]}
    for layer in range(sizes.layers):
        wanted[f"model.layers.{layer}.self_attn.q_proj.weight"] = [sizes.query_width, sizes.hidden]
        wanted[f"model.layers.{layer}.self_attn.k_proj.weight"] = [sizes.key_width, sizes.hidden]
        wanted[f"model.layers.{layer}.mlp.gate_proj.weight"] = [sizes.intermediate, sizes.hidden]
    differing = [name for name, size in wanted.items() if shapes.get(name) != size]
    if differing:
        first = differing[0]
        more = f" ({len(differing)} tensors differ)" if len(differing) > 1 else ""
        has = f"has the shape {shapes[first]}" if first in shapes else "is missing"
        yield f"its weights are not those of its config.json: {first} {has}, config.json says {wanted[first]}{more}"
