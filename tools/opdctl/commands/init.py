"""`opdctl init`: a first experiment file out of a few answers, and the keys that it may have."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from opd.data.files import Unreadable, files_of, raw_rows
from opd.data.reading import How, RowFault, read_row
from opd.experiment import SPEC_CLASSES, VARIABLES, load_text
from opd.experiment.base import joined
from opd.experiment.cluster import Cluster, load_cluster
from opd.experiment.defaults import context_of
from opd.experiment.errors import nearest
from opd.experiment.keys import keys_of
from opd.inputs import Inputs, check_inputs
from opd.inputs.models import config_of_folder
from opd.launch import count_gpus
from opdctl.console import note, usage_error

MOUNT = "/mnt/run"
DEFAULT_BATCH = 256
MAX_GPUS = 8
"""GPUs of the usual node; more are spread over nodes of one size."""

File = Annotated[Path, typer.Option("--file", "-f", metavar="FILE", help="File to write; its name is the run's.")]
Local = Annotated[bool, typer.Option("--local", help="For a run on this machine; else for a cluster.")]
Model = Annotated[
    str | None, typer.Option("--model", metavar="PATH", help="The student: a folder, a hub's name or a URL.")
]
Data = Annotated[str | None, typer.Option("--data", metavar="PATH", help="Training data: a file, a folder, a URL.")]
Teacher = Annotated[str | None, typer.Option("--teacher", metavar="PATH", help="The teacher, as --model.")]
Columns = Annotated[
    str,
    typer.Option("--columns", metavar="PROMPT,ANSWER", help="Columns of the data, where they have names of their own."),
]
Image = Annotated[str | None, typer.Option("--image", metavar="REF", help="Image of the pods, with its digest.")]
Gpus = Annotated[int | None, typer.Option("--gpus", min=1, metavar="N", help="Number of GPUs.")]
Claim = Annotated[
    str | None, typer.Option("--claim", metavar="NAME", help=f"Claim for {MOUNT}, with models and data; '': none.")
]
Keys = Annotated[str | None, typer.Option("--keys", metavar="WORD", help="Explain keys instead; '' means all.")]


def init(
    file: File = Path("exp.yaml"),
    local: Local = False,
    model: Model = None,
    data: Data = None,
    teacher: Teacher = None,
    columns: Columns = "",
    image: Image = None,
    gpus: Gpus = None,
    claim: Claim = None,
    keys: Keys = None,
) -> None:
    """Write a first experiment file, or explain its keys; ask for what no option gives.

    Examples: `opdctl init --local` · `opdctl init --keys opd.loss_type` · `opdctl init --keys learning`
    """
    if keys is not None:
        print(*explained(keys), sep="\n")
        return
    if file.exists():
        raise usage_error(f"{file} exists already", fix="name another file with --file, or delete it")
    place = "a path" if local else f"a path below {MOUNT}"
    asked: list[tuple[str, Any, str]] = [
        ("model", model, f"Student model ({place}, a URL or a hub's name)"),
        ("data", data, f"Training data ({place} or a URL)"),
        ("teacher", teacher, f"Teacher model ({place}, a URL or a hub's name)"),
    ]
    if not local:
        asked += [
            ("image", image, "Image of the pods by digest, as images/build.sh trainer --push prints it"),
            ("gpus", gpus, "Number of GPUs"),
            ("claim", claim, f"Claim with models and data, for {MOUNT} ('': none)"),
        ]
    here: dict[str, Any] = {"count_gpus": count_gpus} if local else {}
    on_cpu = local and count_gpus() == 0
    text = experiment_text(file, _answers(asked), columns, is_local=local, on_cpu=on_cpu)
    loaded = load_text(text, origin=str(file), **here)  # as the command that comes next reads it
    load_cluster(loaded.chart.get("cluster", {}), loaded.spec, origin=str(file))
    if local:
        spec: Any = loaded.spec  # of a kind that reads data: the answers name some
        check_inputs(Inputs.of(spec), origin=str(file))
    file.write_text(text, encoding="utf-8")
    note(f"wrote the file {file}; `opdctl init --keys ''` explains the keys that it may have")
    after = f"opdctl submit {file} --site site.yaml -n NAMESPACE"
    if local:
        after = f"python -m opd.launch {file}" + ("" if on_cpu else " --plan   # then without --plan")
    print(f"next:\n  {after}")


def _answers(asked: list[tuple[str, Any, str]]) -> dict[str, Any]:
    """Return the value of each (name, value, question); ask for values that are None."""
    lacking = [f"--{name}" for name, value, _ in asked if value is None]
    if lacking and not sys.stdin.isatty():
        raise usage_error(f"there is no terminal to ask on, and no {', '.join(lacking)}", fix="give these options")
    default = {"gpus": MAX_GPUS, "claim": ""}
    return {
        name: typer.prompt(question, default=default.get(name), err=True) if value is None else value
        for name, value, question in asked
    }


def experiment_text(file: Path, answers: dict[str, Any], columns: str, *, is_local: bool, on_cpu: bool) -> str:
    """Return the experiment file; a value is written as JSON, which every YAML reader takes."""
    prompt, _, answer = columns.partition(",")
    value = {name: json.dumps(answer, ensure_ascii=False) for name, answer in answers.items()}
    seen = _seen(answers, prompt, answer, ON_CPU if on_cpu else Seen()) if is_local else Seen()
    lines = [
        f"# On-policy distillation {'on this machine' if is_local else 'on a cluster'}: `opdctl init --keys WORD` explains a key.",
        "kind: opd",
        f"name: {json.dumps(joined([file.stem]))}",
        *(ON_CPU_LINES if on_cpu else []),
        f"model: {{path: {value['model']}}}",
        f"teacher: {{path: {value['teacher']}}}",
        "data:",
        f"  train: [{value['data']}]",
        f"  val: [{value['data']}]   # better: prompts that the training does not see",
        *([f"  columns: {json.dumps({'prompt': prompt} | ({'answer': answer} if answer else {}))}"] if prompt else []),
        f"  max_val_samples: {16 if on_cpu else 100}",
        f"  max_prompt_length: {seen.max_prompt_length}",
        f"  max_response_length: {seen.max_response_length}",
        "actor: {learning_rate: 1e-6}",
        *(
            [
                r"reward: {function: math_reward}   # right: the last \boxed{} of an answer; exact_match: the whole answer"
            ]
            * seen.has_truths
        ),
        "trainer:",
        "  total_epochs: 1",
        "  save_freq: 20   # steps from checkpoint to checkpoint",
        "  test_freq: 20   # and from validation to validation"
        if seen.has_truths
        else "  test_freq: -1   # no validation: the data have no ground truths",
    ]
    if seen.batch_size:
        lines.insert(lines.index("data:") + 1, f"  train_batch_size: {seen.batch_size}")
    if not is_local:
        gpus = answers["gpus"]
        num_nodes = next(number for number in range(-(-gpus // MAX_GPUS), gpus + 1) if gpus % number == 0)
        # About the default, in mini-batches of a quarter that every rank shares.
        lines.insert(lines.index("data:") + 1, f"  train_batch_size: {4 * gpus * max(256 // (4 * gpus), 1)}")
        lines += [f"  nnodes: {num_nodes}", f"  gpus_per_node: {gpus // num_nodes}", "cluster:"]
        lines += [f"  image: {{ref: {value['image']}}}"]
        lines += [f"  mounts: [{{claim: {value['claim']}, path: {MOUNT}}}]"] if answers["claim"] else []
    return "\n".join(lines) + "\n"


class Seen(NamedTuple):
    """Facts of the data and the model, as far as they are on this machine."""

    has_truths: bool = True
    batch_size: int = 0
    max_prompt_length: int = 1024
    max_response_length: int = 4096


ON_CPU_LINES = [
    "device: cpu   # this machine has no GPU",
    "rollout: {val: {num_samples: 1}}   # answers to a prompt of a validation; by default 16",
]
ON_CPU = Seen(batch_size=4, max_prompt_length=256, max_response_length=64)
"""As docs/howto/machines.md has it."""


def _seen(answers: dict[str, Any], prompt: str, answer: str, seen: Seen) -> Seen:
    """Look at the data's rows and the model's context; what cannot be read is named by the check of inputs."""
    num, truths = 0, 0
    try:
        for path in [] if "://" in answers["data"] else files_of(Path(answers["data"])):
            for number, (_, row) in enumerate(raw_rows(path)):
                found = read_row(row or {}, How(prompt=prompt, answer=answer), source=path.stem, number=number)
                num, truths = num + 1, truths + (found["reward_model"]["ground_truth"] is not None)
    except (Unreadable, RowFault):
        num = truths = 0
    if num:
        seen = seen._replace(has_truths=truths == num)
    if 0 < num < DEFAULT_BATCH:
        seen = seen._replace(batch_size=min(2 ** (num.bit_length() - 1), seen.batch_size or num))
    if context := context_of(config_of_folder(answers["model"])):
        longest = min(seen.max_prompt_length, context // 2)
        seen = seen._replace(
            max_prompt_length=longest, max_response_length=min(seen.max_response_length, context - longest)
        )
    return seen


def explained(word: str) -> Iterator[str]:
    """Yield the lines about a key, a section, or the keys that a word is found in; without a word about every key."""
    by_kind = {kind: keys_of(cls) for kind, cls in SPEC_CLASSES.items()}
    found = {path: key for keys in by_kind.values() for path, key in keys.items()} | keys_of(Cluster, "cluster.")
    variables = {item.path: item.name for item in VARIABLES}
    texts = {path: f"{path} {key.says} {variables.get(path, '')}".lower() for path, key in found.items()}
    wanted = [path for path in found if path == word or path.startswith(f"{word}.")]
    wanted = wanted or [path for path, text in texts.items() if word.lower() in text]
    if not wanted:
        near = nearest(word, list(found))
        fix = f"did you mean {near}?" if near else "`opdctl init --keys ''` lists all keys"
        raise usage_error(f"no key, section or description has {word!r}", fix=fix)
    for path in wanted:
        key = found[path]
        facts = [key.facts, variables.get(path, "")]
        kinds = [kind for kind, keys in by_kind.items() if path in keys]
        facts += [f"kinds {', '.join(kinds)}"] if path == word and kinds else []
        yield f"{path}  {'; '.join(filter(None, facts))}"
        yield f"    {key.says}"
