"""`opdctl init`: a first site file and experiment file, from options and from the cluster's choices."""

from __future__ import annotations

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
Student = Annotated[str, typer.Option(help="Model to train: model.path.")]
Teacher = Annotated[str, typer.Option(help="Frozen teacher: teacher.path.")]
Data = Annotated[str, typer.Option(help="Prompt files (a comma between), or the folder of prepared files.")]
Val = Annotated[Text, typer.Option(help="Prompt files to validate on, where --data names files.")]
Gpus = Annotated[int | None, typer.Option(min=1, help="GPUs of a node: trainer.gpus_per_node.")]
Store = Annotated[Text, typer.Option("--store", metavar="URL", help="Bucket or folder of all runs: store.url.")]
Endpoint = Annotated[Text, typer.Option(metavar="URL", help="S3 server other than AWS's: store.endpoint.")]
GpuName = Annotated[Text, typer.Option("--gpu-type", help="Type of GPU, as the nodes' label names it.")]
StorageClass = Annotated[Text, typer.Option(help="StorageClass of the runs' volumes.")]
Queue = Annotated[Text, typer.Option(help="Kueue's LocalQueue.")]
STORE_SECRET = "experiment-store"


def init(
    student: Student,
    teacher: Teacher,
    data: Data,
    val: Val = None,
    into: Folder = Path(),
    image: Image = None,
    store: Store = None,
    endpoint: Endpoint = None,
    gpu_type: GpuName = None,
    gpus: Gpus = None,
    storage_class: StorageClass = None,
    queue: Queue = None,
    namespace: Namespace = None,
    context: Context = None,
    no_cluster: NoCluster = False,
    force: Force = False,
    timeout: Timeout = 60.0,
) -> None:
    """Write a first site.yaml and exp.yaml for this cluster; the cluster answers what no option names.

    Prints the command that makes the store's Secret, and the next commands.

    Example: `opdctl init -n opd --student Qwen/Qwen3-1.7B --teacher Qwen/Qwen3-8B --data train.parquet --val val.parquet`
    """
    from opdctl.chart.starting import two_files
    from opdctl.kube.secrets import make_secret

    files = (into / "site.yaml", into / "exp.yaml")
    if taken := [str(file) for file in files if file.exists() and not force]:
        fix = "choose another folder with --into, or say --force"
        raise usage_error(f"{' and '.join(taken)}: there already", fix=fix)
    with deadline(timeout):
        offers, home = _offers(namespace, context, no_cluster)
    for remark in offers.remarks:
        note(f"note: {remark}")
    chosen = next((item for item in offers.gpus if gpu_type in (None, item.name)), None)
    values: dict[str, Any] = {"model.path": student, "teacher.path": teacher, **_data(data, val)}
    values["trainer.gpus_per_node"] = gpus or (chosen.num_gpus if chosen else 8)
    is_url = "://" in (store or "")
    if endpoint and not is_url:
        note(f"note: --endpoint {endpoint} has no effect without a --store that is a URL")
    queue = queue or next(iter(offers.queues), None)
    more = {
        "cluster.image.ref": image,
        "store.url": store,
        "store.endpoint": endpoint if is_url else None,
        "cluster.secrets.store": STORE_SECRET if is_url else None,
        "cluster.gpu.type": gpu_type or (chosen.name if chosen else None),
        "cluster.worker.tolerations": chosen.tolerations if chosen else None,
        "cluster.checkpoints.storageClass": storage_class or next(iter(offers.storage_classes), None),
        "cluster.queue": {"manager": "kueue", "name": queue} if queue else None,
        "cluster.lifecycle": "suspendable" if queue else None,
    }
    texts = two_files(values | {path: value for path, value in more.items() if value})
    into.mkdir(parents=True, exist_ok=True)
    for file, text in zip(files, texts, strict=True):
        file.write_text(text, encoding="utf-8")
        note(f"wrote the file {file}")
    if image is None:
        note("note: no image yet: `images/build.sh trainer --push REGISTRY` prints the value of cluster.image.ref")
    if is_url:
        print(f"The store's Secret, unless it exists:\n  {make_secret(STORE_SECRET, home)}")
    words = f"{files[1]} --site {files[0]} -n {home}"
    print(f"next:\n  opdctl doctor {words}\n  opdctl submit {words}")


def _offers(namespace: Text, context: Text, no_cluster: bool) -> tuple[Offers, str]:
    """Return the cluster's choices and the namespace; without --context an unreachable cluster is left out."""
    from opdctl.chart.starting import Offers, look_at_offers
    from opdctl.kube.client import NO_KUBECONFIG, connect, is_configured
    from opdctl.kube.errors import ClusterError

    home = namespace or "opd"
    if no_cluster:
        return Offers(), home
    if not (is_configured() or context is not None):
        return Offers(remarks=[NO_KUBECONFIG]), home
    try:
        api = connect(namespace=namespace, context=context)
        return look_at_offers(api), api.namespace
    except ClusterError as error:
        if context is not None:
            raise
        return Offers(remarks=[f"the cluster was left out: {error}"]), home


def _data(train: str, val: Text) -> dict[str, Any]:
    """Return the keys for prompt files, or for a folder with files of the usual names."""
    is_folder = (
        "," not in train and not train.startswith("toy://") and (train.endswith("/") or not PurePath(train).suffix)
    )
    if is_folder and val:
        rule = f"the validation files of a folder go by their names, so --val {val} would have no effect"
        raise usage_error(f"data.dir {train!r}: {rule}", fix="name files with --data, or leave --val out")
    if is_folder:
        return {"data.dir": train}
    if not val:
        raise usage_error("data.val is missing", fix="name the validation files with --val")
    return {"data.train": _files("data.train", train), "data.val": _files("data.val", val)}


def _files(path: str, text: str) -> list[str]:
    from opd.inputs.data import suffix_fault

    files = [part.strip() for part in text.split(",") if part.strip()]
    for file in files:
        if not file.startswith("toy://") and (rule := suffix_fault(PurePath(file))):
            fix = "prepare it as one of these; the name of a folder of prepared files may end in /"
            raise usage_error(f"{path} {file!r}: {rule}", fix=fix)
    return files
