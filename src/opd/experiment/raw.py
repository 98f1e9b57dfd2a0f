"""Changes of a file's tree by texts from outside it: `--set`, environment variables, Hydra overrides."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple, cast, get_origin

from pydantic.fields import FieldInfo

from opd.experiment.algorithm import Opd
from opd.experiment.base import ASKS, DISTILS, FILE_KINDS, RUNS, SAMPLES, TRAINS, Kind
from opd.experiment.errors import SECRET_FIX, SECRET_RULE, Problem, SpecError, nearest
from opd.experiment.field_errors import refused_key, unknown_key
from opd.experiment.kinds import SPEC_CLASSES
from opd.experiment.reader import read_text
from opd.experiment.sections import Split
from opd.experiment.tree import field_at, get_path, leaf_paths, section_of, set_path, strip_optional
from opd.redaction import REDACTED, is_secret_value, without

_ACTOR, _MODEL, _REF, _ROLLOUT = (f"actor_rollout_ref.{part}" for part in ("actor", "model", "ref", "rollout"))

# (verl's section, ours, keys that carry one another unchanged: a name that both have, or verl's name:ours).
# Of several keys of verl with one key of ours the first is read; all of them are written.
_SECTIONS: tuple[tuple[str, str, str], ...] = (
    ("data", "data", "train_files:train val_files:val train_batch_size max_prompt_length max_response_length"),
    ("data", "data", "filter_overlong_prompts:filter_overlong shuffle dataloader_num_workers:num_workers"),
    ("data", "data", "train_max_samples:max_train_samples val_max_samples:max_val_samples"),
    (_MODEL, "model", "path trust_remote_code"),
    (_MODEL, "actor", "use_remove_padding enable_gradient_checkpointing:gradient_checkpointing"),
    (f"{_ACTOR}.optim", "actor", "lr:learning_rate lr_scheduler_type:lr_schedule min_lr_ratio"),
    (f"{_ACTOR}.optim", "actor", "lr_warmup_steps:num_warmup_steps weight_decay betas clip_grad:grad_clip"),
    (_ACTOR, "actor", "grad_clip ppo_epochs ppo_mini_batch_size ppo_micro_batch_size_per_gpu use_dynamic_bsz"),
    (_ACTOR, "actor", "ppo_max_token_len_per_gpu ulysses_sequence_parallel_size use_torch_compile:torch_compile"),
    (f"{_ACTOR}.fsdp_config", "actor", "use_torch_compile:torch_compile param_offload optimizer_offload"),
    (_ACTOR, "grpo", "clip_ratio_low clip_ratio_high clip_ratio_c kl_loss_coef kl_loss_type entropy_coeff"),
    ("algorithm", "grpo", "norm_adv_by_std_in_grpo:norm_adv_by_std"),
    (_ACTOR, "grpo", "loss_agg_mode"),
    (_ROLLOUT, "actor", "log_prob_micro_batch_size_per_gpu log_prob_max_token_len_per_gpu"),
    (_REF, "actor", "log_prob_micro_batch_size_per_gpu log_prob_max_token_len_per_gpu"),
    (_ROLLOUT, "rollout", "n:num_samples temperature top_p top_k"),
    (f"{_ROLLOUT}.val_kwargs", "rollout.val", "n:num_samples temperature top_p top_k"),
    (_ROLLOUT, "rollout", "tensor_model_parallel_size:tensor_parallel_size gpu_memory_utilization free_cache_engine"),
    (_ROLLOUT, "rollout", "enforce_eager max_num_seqs agent.num_workers:num_agent_workers"),
    (f"{_ROLLOUT}.multi_turn", "agent", "max_assistant_turns max_tool_response_length max_parallel_calls"),
    (f"{_ROLLOUT}.multi_turn", "agent", "format:tool_format"),
    ("trainer", "trainer", "nnodes n_gpus_per_node:gpus_per_node"),
    ("trainer", "", "device"),
    ("trainer", "trainer", "logger:loggers project_name:project total_epochs total_training_steps:total_steps"),
    ("trainer", "trainer", "save_freq test_freq val_before_train"),
)
VERL_KEYS: tuple[tuple[str, str], ...] = tuple(  # (verl's key, the spec's path)
    (f"{theirs}.{name.partition(':')[0]}", f"{ours}.{name.rpartition(':')[2]}".lstrip("."))
    for theirs, ours, names in _SECTIONS
    for name in names.split()
)
ALSO_READ: dict[str, str] = {
    **{f"opd.{path}": f"opd.{path}" for path, _ in leaf_paths(Opd)},
    **{f"opd.teacher.{name}": f"teacher.{name}" for name in ("path", "trust_remote_code", "dtype", "offload")},
    "actor_rollout_ref.ref.model.path": "teacher.path",
    "data.seed": "seed",
    **{f"data.split.{path}": f"data.split.{path}" for path, _ in leaf_paths(Split)},
}
"""Keys that are read but never written: ours as people type them among verl's, the original's name for the teacher."""
_SPEC_PATH_OF: dict[str, str] = {**dict(VERL_KEYS), **ALSO_READ}


class Variable(NamedTuple):
    name: str
    path: str
    kinds: tuple[Kind, ...]


class Applied(NamedTuple):
    name: str
    path: str
    value: Any  # as it is now in the spec


# (kinds, section, variables: NAME of the key `name`, or NAME:key)
_TABLE: tuple[tuple[tuple[Kind, ...], str, str], ...] = (
    (FILE_KINDS, "", "RUN_ID:name OUTPUT_ROOT:output.root"),
    (RUNS, "model.", "MODEL_PATH:path MODEL_NAME:name"),
    (RUNS, "data.", "DATA_DIR:dir TRAIN_BATCH_SIZE ENABLE_THINKING MAX_PROMPT_LENGTH MAX_RESPONSE_LENGTH"),
    (RUNS, "actor.", "PPO_MINI_BATCH_SIZE PPO_MICRO_BATCH_SIZE_PER_GPU LOG_PROB_MICRO_BATCH_SIZE_PER_GPU"),
    (RUNS, "", "USE_DYNAMIC_BSZ:actor.use_dynamic_bsz MASTER_PORT:trainer.master_port"),
    (TRAINS, "", "LEARNING_RATE:actor.learning_rate"),
    (TRAINS, "trainer.", "TOTAL_EPOCHS SAVE_FREQ TEST_FREQ VAL_BEFORE_TRAIN"),
    (SAMPLES, "rollout.", "TP_SIZE:tensor_parallel_size ROLLOUT_NTP_SIZE:tensor_parallel_size ROLLOUT_N:num_samples"),
    (SAMPLES, "rollout.", "GPU_MEMORY_UTIL:gpu_memory_utilization TEMPERATURE TOP_P TOP_K"),
    (SAMPLES, "rollout.val.", "VAL_N:num_samples VAL_TEMPERATURE:temperature VAL_TOP_P:top_p VAL_TOP_K:top_k"),
    (("grpo",), "grpo.", "KL_LOSS_COEF KL_LOSS_TYPE CLIP_RATIO_LOW CLIP_RATIO_HIGH CLIP_RATIO_C LOSS_AGG_MODE"),
    (("grpo",), "", "ENTROPY_COEFF:grpo.entropy_coeff DAPO_TRAIN_RATIO:data.train_ratio"),
    (DISTILS, "", "TEACHER_MODEL_PATH:teacher.path OPD_LOSS_TYPE:opd.loss_type OPD_CHUNK_SIZE:opd.chunk_size"),
    (DISTILS, "opd.", "OPD_MAX_LENGTH:max_length OPD_REWARD_BETA:reward_beta"),
    (("opd-agent",), "agent.", "DATABASE_DIR ENABLE_TOOLS MAX_ASSISTANT_TURNS MAX_TOOL_RESPONSE_LENGTH TOOL_FORMAT"),
    (("opd-agent",), "", "TOOL_CONFIG_PATH:agent.tool_config_path AGENT_NUM_WORKERS:rollout.num_agent_workers"),
    (("opd-agent",), "", "TRAIN_RATIO:data.train_ratio REWARD_FN_PATH:reward.path"),
    (ASKS, "", "INSTRUCTION_VARIANT:eval.instruction_variant REWARD_FUNCTION:reward.function"),
    (("convert",), "", "CHECKPOINT_PATH:convert.checkpoint"),
)
VARIABLES = tuple(
    Variable(name, section + (path or name.lower()), kinds)
    for kinds, section, words in _TABLE
    for name, _, path in (word.partition(":") for word in words.split())
)
"""The original's environment variables: the key that each one overrides, and the kinds that read it."""

# key, optional @package, `=`, value; a deletion is `~key`
_OVERRIDE = re.compile(r"(?P<prefix>\+\+|\+|~|)(?P<key>[A-Za-z_][\w./@-]*)(?:=(?P<value>.*))?", re.DOTALL)
_TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_OURS = ("opd.", "run.")  # verl's config has no such keys
_NOTHING = {"0", "0.0", "false", "null", "none"}
# verl's keys of the policy loss that the spec does not carry
_POLICY_LOSS = re.compile(rf"{re.escape(_ACTOR)}\.(use_kl_loss|clip_ratio|calculate_entropy|policy_loss\..*)")


def parse_raw(text: str) -> re.Match[str] | None:
    """Return `prefix`, `key` and `value` (None for `~key`) of a raw override, or None if the text is none."""
    match = _OVERRIDE.fullmatch(text)
    return match if match and (match["value"] is not None or match["prefix"] == "~") else None


def unquote(text: str) -> str:
    """Return the text without one pair of surrounding quotes."""
    return text[1:-1] if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"" else text


class Edits:
    """Changes of a tree; `sources` gets the source of each key that is set, `problems` the changes that fail."""

    def __init__(self, tree: dict[str, Any], kind: Kind, sources: dict[str, str], problems: list[Problem]) -> None:
        self.tree, self.kind, self.cls = tree, kind, SPEC_CLASSES[kind]
        self.sources, self.problems = sources, problems
        self.kept: dict[str, str] = {}  # the overrides that stay, by their keys

    def assign(self, path: str, text: str, source: str) -> None:
        """Set a key of the kind to the value that a text means for its type; `null` unsets it, as in Helm."""
        kind = strip_optional(cast(FieldInfo, field_at(self.cls, path)).annotation)
        value: Any = None
        self.sources[path] = source
        if kind is bool and (word := text.strip().lower()) in _TRUTHS:
            value = _TRUTHS[word]
        elif text != "null" and (kind is str or get_origin(kind) is Literal):
            value = unquote(text)
        elif text != "null":
            try:  # numbers; lists and maps in YAML's flow style; a bare word stays a text
                value = read_text(f"value: {text}", origin=path).tree["value"]
            except SpecError as error:
                self.problems += [replace(one, path=path, value=text, source=source) for one in error.problems]
        if not set_path(self.tree, path, value):
            self._refuse(path, text, "a key above it holds a value", "", source)

    def sets(self, texts: Iterable[str]) -> None:
        """Apply each `path=value`."""
        for text in texts:
            path, _, raw = text.partition("=")
            path = f"{path}.path" if path in ("model", "teacher") else path
            source, field = f"--set {path}", field_at(self.cls, path)
            if not path or not raw:
                self._refuse(path, text, "--set takes spec.path=value", "--set actor.learning_rate=1e-6", source)
            elif field is None or section_of(field) is not None:
                self.problems.append(replace(unknown_key(path, raw, self.cls), source=source))
            else:
                self.assign(path, raw, source)

    def environment(self, env: Mapping[str, str]) -> tuple[tuple[Applied, ...], tuple[str, ...]]:
        """Apply the original's variables that are not empty; return them, and a note for each unread one."""
        applied: list[Applied] = []
        given = [variable for variable in VARIABLES if env.get(variable.name)]
        for name, path in (variable[:2] for variable in given if self.kind in variable.kinds):
            source = f"environment variable {name}"
            self.assign(path, env[name], source)
            value = get_path(self.tree, path)
            for other in applied:
                if other.path == path and other.value != value:
                    rule = f"{other.name}={other.value} and {name}={value} name the same setting and differ"
                    self._refuse(path, value, rule, f"unset {other.name}", source)
            applied.append(Applied(name, path, value))
        unread = [variable.name for variable in given if self.kind not in variable.kinds]
        return tuple(applied), tuple(f"{name} is set but kind {self.kind} does not read it: ignored" for name in unread)

    def overrides(self, texts: Iterable[Any], source: str) -> None:
        """Apply Hydra overrides in order: a key that the spec has is set, any other is kept."""
        for text in texts:
            if "overrides" not in self.cls.model_fields:
                return self._refuse("overrides", text, f"kind {self.kind} starts no verl trainer", "remove it", source)
            raw = parse_raw(text) if isinstance(text, str) else None
            where = f"{source} {raw['key']}" if raw else source
            if refused := self._refusal(text, raw):
                self._refuse("overrides", *refused, where)
            elif raw and raw["value"] is not None and raw["prefix"] != "~" and (path := self._path_of(raw)):
                self.assign(path, raw["value"], where)
            elif raw:
                self.kept.pop(raw["key"], None)  # the later one has its place, too
                self.kept[raw["key"]] = text

    def _path_of(self, raw: re.Match[str]) -> str:
        """Return the key of this kind that an override of verl sets, or an empty text."""
        path = _SPEC_PATH_OF.get(raw["key"], "")
        return path if path and field_at(self.cls, path) else ""

    def _refuse(self, path: str, value: Any, rule: str, fix: str, source: str) -> None:
        self.problems.append(Problem(path=path, value=value, rule=rule, fix=fix, source=source))

    def _refusal(self, text: Any, raw: re.Match[str] | None) -> tuple[Any, str, str] | None:
        """Return value, rule and fix of an override that cannot be used, or None."""
        if isinstance(text, str) and (is_secret_value(text) or without(text) != text):
            return REDACTED, SECRET_RULE, SECRET_FIX
        if raw is None:
            return text, "a raw override is Hydra's `key=value`, `+key=value`, `++key=value` or `~key`", "see `--help`"
        value, remove = unquote(raw["value"] or ""), "remove the override"
        shown = f"{raw['key']}={value}"
        if value.startswith("{"):
            return shown, "a map could set keys unseen by the spec's checks", "write one override for each key"
        if raw["prefix"] != "~" and (reason := refused_key(raw["key"], value)):
            return shown, reason, remove
        is_known = bool(self._path_of(raw))
        if raw["key"].startswith(_OURS) and (not is_known or raw["prefix"] == "~"):
            others = [name for name in _SPEC_PATH_OF if name.startswith(_OURS) and name != raw["key"]]
            near = nearest(raw["key"], others)
            return text, "this kind has no such key", f"did you mean {near}?" if near else remove
        lacks = f"it has no {_SPEC_PATH_OF[raw['key']]}" if raw["key"] in _SPEC_PATH_OF and not is_known else ""
        if "grpo" not in self.cls.model_fields and _POLICY_LOSS.fullmatch(raw["key"]):
            lacks = "the policy loss of verl is kind grpo's"
        if lacks and value.lower() not in _NOTHING:
            return shown, f"this kind does not read it: {lacks}", remove
        return None
