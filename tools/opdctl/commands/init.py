"""`opdctl init`: a first site file and experiment file, from flags, questions and what the cluster offers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opdctl.commands.render import Image
from opdctl.console import Context, Namespace, NoCluster, Timeout, deadline, note
from opdctl.errors import usage_error

if TYPE_CHECKING:
    from opdctl.doctor.offers import Offers

Text = str | None
Folder = Annotated[Path, typer.Option("--into", help="Folder for site.yaml and exp.yaml.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the two files.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing: flags, what the cluster offers, and defaults.")]
Student = Annotated[Text, typer.Option(help="Model to train: model.path.")]
Teacher = Annotated[Text, typer.Option(help="Frozen teacher: teacher.path.")]
Data = Annotated[Text, typer.Option(help="Parquet files (a comma between), or the folder of prepared files.")]
Val = Annotated[Text, typer.Option(help="Parquet files to validate on, where --data names files.")]
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
    from opdctl.chart.starting import check, secret_commands, two_trees, yaml_text

    files = (into / "site.yaml", into / "exp.yaml")
    if taken := [str(file) for file in files if file.exists() and not force]:
        raise usage_error(
            f"{' and '.join(taken)}: there already", fix="choose another folder with --into, or say --force"
        )
    with deadline(timeout):
        offers, at = _offers(namespace, context, no_cluster)
    keys = {**spec_keys("opd"), **cluster_keys()}
    answers: dict[str, Any] = {}

    def answer(path: str, given: Any, *, offered: Sequence[str] = (), is_needed: str = "", says: str = "") -> Any:
        """The flag's value, the person's, or the first of what is offered; kept under its path unless it is empty."""
        value, default = given, next(iter(offered), "")
        if value is None and not yes and sys.stdin.isatty():
            example = next(iter(keys[path].node.get("examples", ())), "") if path in keys else ""
            hint = f" There are: {', '.join(offered)}." if offered else f" For example {example}." if example else ""
            value = typer.prompt(
                f"{path}: {says or keys[path].says}{hint}", default=default, show_default=bool(default), err=True
            ).strip()
        value = default if value is None else value
        if is_needed and not value:
            raise usage_error(f"{path} is needed, and nothing says it", fix=f"give {is_needed}")
        if value:
            answers[path] = value
        return value

    answer("model.path", student, is_needed="--student")
    answer("teacher.path", teacher, is_needed="--teacher")
    _data(answers, answer, data, val)
    answer("cluster.image.ref", image)
    url = answer("store.url", store)
    if url and "://" in url:
        answer("store.endpoint", endpoint)
        answer("cluster.secrets.store", store_secret, offered=["experiment-store"])
    for path, secret in (("cluster.secrets.huggingFace", hub_secret), ("cluster.secrets.wandb", wandb_secret)):
        if found := answer(path, secret, says="Secret with the token, as NAME:KEY; nothing for none."):
            answers[path] = _secret(path, found)
    if answers.get("cluster.image.ref") and (found := answer("cluster.image.pullSecrets", pull_secret)):
        answers["cluster.image.pullSecrets"] = [found]
    kind = answer("cluster.gpu.type", gpu_type, offered=[item.name for item in offers.gpus])
    chosen = next((item for item in offers.gpus if item.name == kind), None)
    if chosen is not None and chosen.tolerations:
        answers["cluster.worker.tolerations"] = chosen.tolerations
    answers["trainer.gpus_per_node"] = gpus or (chosen.num_gpus if chosen else 8)
    answer("cluster.checkpoints.storageClass", storage_class, offered=offers.storage_classes)
    if name := answer("cluster.queue.name", queue, offered=offers.queues):
        answers.pop("cluster.queue.name")
        answers |= {"cluster.queue": {"manager": "kueue", "name": name}, "cluster.lifecycle": "suspendable"}

    site, experiment = two_trees(answers)
    texts = (
        yaml_text("What every run on this cluster has in common; it goes under each experiment.", site, keys),
        yaml_text("One experiment. `opdctl explain KEY` says what else can stand here.", experiment, keys),
    )
    check(*texts)
    into.mkdir(parents=True, exist_ok=True)
    for file, text in zip(files, texts, strict=True):
        file.write_text(text, encoding="utf-8")
        note(f"wrote {file}")
    for remark in offers.remarks:
        note(f"note: {remark}")
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
    from opdctl.doctor.offers import Offers, look_at_offers
    from opdctl.kube.client import connect, is_configured
    from opdctl.kube.errors import ClusterError

    if no_cluster or not (is_configured() or context is not None):
        return Offers(), namespace or "opd"
    try:
        api = connect(namespace=namespace, context=context)
        return look_at_offers(api), api.namespace
    except ClusterError as error:
        if context is not None:
            raise
        return Offers(remarks=[f"the cluster was left out: {error}"]), namespace or "opd"


def _data(answers: dict[str, Any], answer: Any, data: str | None, val: str | None) -> None:
    """Files, each kind by its own key, or the folder in which they have their usual names."""
    found = answer("data.train", data, is_needed="--data", says="Parquet files (a comma between), or their folder.")
    files = [part.strip() for part in found.split(",") if part.strip()]
    if not all(file.endswith(".parquet") for file in files):
        del answers["data.train"]
        answers["data.dir"] = found
        return
    answers["data.train"] = files
    found = answer("data.val", val, is_needed="--val", says="Parquet files to validate on (a comma between).")
    answers["data.val"] = [part.strip() for part in found.split(",") if part.strip()]


def _secret(path: str, text: str) -> dict[str, str]:
    name, _, key = text.partition(":")
    if not name or not key:
        raise usage_error(f"{path} {text!r}: it names a Secret and its key", fix="write NAME:KEY")
    return {"secret": name, "key": key}
