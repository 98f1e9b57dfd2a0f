"""`opdctl init`: a first site file and experiment file, from flags, questions and what the cluster offers."""

from __future__ import annotations

from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opdctl.commands.render import Image
from opdctl.console import Context, Namespace, NoCluster, Timeout, deadline, note
from opdctl.errors import usage_error

if TYPE_CHECKING:
    from opdctl.chart.starting import Offers

Text = str | None
Folder = Annotated[Path, typer.Option("--into", help="Folder for site.yaml and exp.yaml.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the two files.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing: flags, what the cluster offers, and defaults.")]
Student = Annotated[Text, typer.Option(help="Model to train: model.path.")]
Teacher = Annotated[Text, typer.Option(help="Frozen teacher: teacher.path.")]
Data = Annotated[
    Text, typer.Option(help="Prompt files (.parquet, .json, .jsonl; a comma between), or the folder of prepared ones.")
]
Val = Annotated[Text, typer.Option(help="Prompt files to validate on, where --data names files.")]
Gpus = Annotated[int | None, typer.Option(min=1, help="GPUs of a node to use: trainer.gpus_per_node.")]
Store = Annotated[Text, typer.Option("--store", metavar="URL", help="Bucket or folder of all runs: store.url.")]
Endpoint = Annotated[Text, typer.Option(metavar="URL", help="S3 server other than AWS's: store.endpoint.")]
StoreSecret = Annotated[Text, typer.Option(help="Secret with the store's variables.")]
HubSecret = Annotated[Text, typer.Option(metavar="NAME:KEY", help="Secret with the hub's token.")]
WandbSecret = Annotated[Text, typer.Option(metavar="NAME:KEY", help="Secret with the W&B API key.")]
PullSecret = Annotated[Text, typer.Option(help="Secret for the image's registry.")]
GpuName = Annotated[Text, typer.Option("--gpu-type", help="Type of GPU, as the nodes' label names it.")]
StorageClass = Annotated[Text, typer.Option(help="StorageClass of the runs' volumes.")]
Queue = Annotated[Text, typer.Option(help="Kueue's LocalQueue.")]


def init(
    into: Folder = Path(),
    image: Image = None,
    store: Store = None,
    endpoint: Endpoint = None,
    store_secret: StoreSecret = None,
    hub_secret: HubSecret = None,
    wandb_secret: WandbSecret = None,
    pull_secret: PullSecret = None,
    gpu_type: GpuName = None,
    gpus: Gpus = None,
    storage_class: StorageClass = None,
    queue: Queue = None,
    student: Student = None,
    teacher: Teacher = None,
    data: Data = None,
    val: Val = None,
    namespace: Namespace = None,
    context: Context = None,
    no_cluster: NoCluster = False,
    force: Force = False,
    yes: Yes = False,
    timeout: Timeout = 60.0,
) -> None:
    """Write a first site.yaml and exp.yaml for this cluster: asks for what no flag says, and offers what the cluster has.

    Prints the commands that make the Secrets, and what to type next.

    Example: `opdctl init -n opd --student Qwen/Qwen3-1.7B --teacher Qwen/Qwen3-8B --data train.parquet --val val.parquet`
    """
    import sys

    from opd.config.keys import cluster_keys, spec_keys
    from opd.text import inert
    from opdctl.chart.starting import Answers, Interview, check, secret_commands, two_trees, yaml_text

    files = (into / "site.yaml", into / "exp.yaml")
    if taken := [str(file) for file in files if file.exists() and not force]:
        raise usage_error(
            f"{' and '.join(taken)}: there already", fix="choose another folder with --into, or say --force"
        )
    with deadline(timeout):
        offers, at = _offers(namespace, context, no_cluster)
    remarks = [f"note: {remark}" for remark in offers.remarks]
    is_asking = not yes and sys.stdin.isatty()
    while is_asking and remarks:  # who answers by hand knows why nothing is offered; else an error comes first
        note(remarks.pop(0))
    keys = {**spec_keys("opd"), **cluster_keys()}

    def texts(answers: Answers) -> tuple[str, str]:
        site, experiment = two_trees(answers)
        return (
            yaml_text("What every run on this cluster has in common; it goes under each experiment.", site, keys),
            yaml_text("One experiment. `opdctl explain KEY` says what else can stand here.", experiment, keys),
        )

    interview = Interview(keys, lambda answers: check(*texts(answers)), is_asking=is_asking)
    ask = interview.ask
    ask("model.path", student, flag="--student")
    ask("teacher.path", teacher, flag="--teacher")
    says = "Prompt files (a comma between), or the folder of prepared ones."
    found = ask("data.train", data, flag="--data", says=says, read=partial(_data, val=val))
    if "data.train" in interview.answers or not found:
        ask("data.val", val, flag="--val", says="Prompt files to validate on (a comma between).", read=_val)
    ask("cluster.image.ref", image)
    if "://" in ask("store.url", store):
        ask("store.endpoint", endpoint)
        ask("cluster.secrets.store", store_secret, default="experiment-store")
    for path, secret in (("cluster.secrets.huggingFace", hub_secret), ("cluster.secrets.wandb", wandb_secret)):
        ask(path, secret, says="Secret with the token, as NAME:KEY.", read=partial(_secret, path))
    if "cluster.image.ref" in interview.answers:
        ask("cluster.image.pullSecrets", pull_secret, read=lambda text: {"cluster.image.pullSecrets": [text]})
    kind = ask("cluster.gpu.type", gpu_type, offered=[item.name for item in offers.gpus])
    chosen = next((item for item in offers.gpus if item.name == kind), None)
    if chosen is not None and chosen.tolerations:
        interview.answers["cluster.worker.tolerations"] = chosen.tolerations
    number = None if gpus is None else str(gpus)
    ask("trainer.gpus_per_node", number, default=str(chosen.num_gpus if chosen else 8), read=_gpus)
    ask("cluster.checkpoints.storageClass", storage_class, offered=offers.storage_classes)
    ask("cluster.queue.name", queue, offered=offers.queues, read=_queue)
    interview.check_needed()

    answers = interview.answers
    for flag, given, path, needed in (
        ("--endpoint", endpoint, "store.endpoint", "a --store that is a URL"),
        ("--store-secret", store_secret, "cluster.secrets.store", "a --store that is a URL"),
        ("--pull-secret", pull_secret, "cluster.image.pullSecrets", "--image"),
        ("--context", None if not no_cluster else context, "", "a look at the cluster, which --no-cluster leaves out"),
    ):
        if given and path not in answers:
            remarks.append(f"note: {flag} {given} has no effect without {needed}")
    site, _ = two_trees(answers)
    written = texts(answers)
    check(*written)
    into.mkdir(parents=True, exist_ok=True)
    for file, text in zip(files, written, strict=True):
        file.write_text(text, encoding="utf-8")
        note(f"wrote {file}")
    for remark in remarks:
        note(remark)
    if "cluster.image.ref" not in answers:
        note("note: no image yet: `images/build.sh trainer --push REGISTRY` prints what cluster.image.ref takes")
    if commands := secret_commands(site, at):
        print("Secrets, unless they are there:")
        print("\n".join(f"  {inert(line, keep='')}" for line in commands))
    print(
        f"next:\n  opdctl doctor {files[1]} --site {files[0]} -n {at}\n  opdctl submit {files[1]} --site {files[0]} -n {at}"
    )


def _offers(namespace: str | None, context: str | None, no_cluster: bool) -> tuple[Offers, str]:
    """What the cluster offers, and the namespace; a cluster that was not asked for by name need not answer."""
    from opdctl.chart.starting import Offers, look_at_offers
    from opdctl.kube.client import NO_KUBECONFIG, connect, is_configured
    from opdctl.kube.errors import ClusterError

    if no_cluster:
        return Offers(), namespace or "opd"
    if not (is_configured() or context is not None):
        return Offers(remarks=[NO_KUBECONFIG]), namespace or "opd"
    try:
        api = connect(namespace=namespace, context=context)
        return look_at_offers(api), api.namespace
    except ClusterError as error:
        if context is not None:
            raise
        return Offers(remarks=[f"the cluster was left out: {error}"]), namespace or "opd"


def _data(text: str, *, val: str | None) -> dict[str, Any]:
    """Files, or the folder in which they have their usual names."""
    is_folder = "," not in text and not text.startswith("toy://") and (text.endswith("/") or not PurePath(text).suffix)
    if not is_folder:
        return {"data.train": _files("data.train", text)}
    if val:
        rule = f"the validation files of a folder go by their names, so --val {val} would have no effect"
        raise usage_error(f"data.dir {text!r}: {rule}", fix="name files with --data, or leave --val out")
    return {"data.dir": text}


def _val(text: str) -> dict[str, Any]:
    return {"data.val": _files("data.val", text)}


def _files(path: str, text: str) -> list[str]:
    from opd.inputs.data import suffix_fault

    files = [part.strip() for part in text.split(",") if part.strip()]
    for file in files:
        if not file.startswith("toy://") and (rule := suffix_fault(PurePath(file))):
            fix = "prepare it as one of these; the name of a folder of prepared files (--data) may end in /"
            raise usage_error(f"{path} {file!r}: {rule}", fix=fix)
    return files


def _secret(path: str, text: str) -> dict[str, Any]:
    name, _, key = text.partition(":")
    if not name or not key:
        raise usage_error(f"{path} {text!r}: it names a Secret and its key", fix="write NAME:KEY")
    return {path: {"secret": name, "key": key}}


def _gpus(text: str) -> dict[str, Any]:
    if not text.isdecimal():
        raise usage_error(f"trainer.gpus_per_node {text!r}: it is a number of GPUs", fix="write one, such as 8")
    return {"trainer.gpus_per_node": int(text)}


def _queue(text: str) -> dict[str, Any]:
    return {"cluster.queue": {"manager": "kueue", "name": text}, "cluster.lifecycle": "suspendable"}
