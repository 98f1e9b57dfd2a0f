"""The scenarios: each plays as a person would and records its promises."""

import base64
import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from tests.e2e.cluster.isolation import NODE_IP
from tests.e2e.cluster.kube import KubeError, Tree
from tests.e2e.cluster.services import BUCKET, S3_PORT, S3_SECRET
from tests.e2e.cluster.tenancy import NAMESPACE
from tests.e2e.scene import EXPERIMENTS, PREFIX, ROOT, RUN_TIMEOUT_S, Run, Scene, override, role_of
from tests.runs.s3.server import FailingProxy

import gotools
from opd.data.toy import STUDENT_DIR
from opd.data.toy.task import write_parquet
from opd_envs.travel.toy import make_world

QUICKSTART, SPECS = EXPERIMENTS / "quickstart.yaml", ROOT / "tests" / "e2e_cpu" / "specs"
FAULTS = ("worker.yaml", "faults.yaml")
MODEL_FILES = {"config.json", "model.safetensors", "tokenizer.json", "conversion.json"}  # of a conversion
MOST_SECONDS_LOST = 90.0
NUM_STEPS = override("six-steps.yaml", "trainer", "total_steps")
NUM_FAULT_STEPS = override("faults.yaml", "trainer", "total_steps")
LOST = override("faults.yaml", "trainer", "save_freq")  # most steps that a loss without notice may cost
# The Job waits 10, 20, 40 and 80 s before it makes another submitter: the run must outlast them.
NUM_SUBMITTERS_LOST, NUM_MANY_STEPS, STORE_AWAY_S = 4, 70, 30.0


# -- promises of several scenarios


def succeeded(run: Run) -> None:
    """Promise the RayJob's good end."""
    status = run.last_rayjob()["status"]
    seen = f"{status['jobDeploymentStatus']}, {status.get('jobStatus', '')}"
    run.scene.promise(f"{run.name}: the RayJob SUCCEEDED", seen == "Complete, SUCCEEDED", seen)


def whole(run: Run, *, num_attempts: int = 1, most_recomputed: int = 0, last_step: int = NUM_FAULT_STEPS) -> None:
    """Promise one row of every step in each attempt that trained it, none missing, few trained twice, the last one saved."""
    rows, numbers = run.training(), run.attempts()
    steps = sorted({step for _, step in rows})
    num_doubled, num_recomputed = len(rows) - len(set(rows)), len(set(rows)) - len(steps)
    num_steps = json.loads(run.kept("store/result.json").read_text())["steps"]
    is_saved = any(name.endswith(f"global_step_{last_step}/COMPLETE") for name in run.objects())
    is_whole = steps == list(range(1, last_step + 1)) and not num_doubled and num_steps == last_step and is_saved
    spans = {number: [step for attempt, step in rows if attempt == number] for number in numbers}
    seen = f"steps by attempt {spans}; {num_recomputed} recomputed, {num_doubled} doubled; result of step {num_steps}, saved: {is_saved}"
    is_kept = is_whole and num_recomputed <= most_recomputed and len(numbers) == num_attempts
    run.scene.promise(f"{run.name}: no step lost or doubled, at most {most_recomputed} recomputed", is_kept, seen)


def lost_without_notice(run: Run) -> None:
    """Promise that no hook announced the pod's loss, and that the next step ended in time."""
    is_silent = "asked to save" not in run.kept("store/attempts/0001/driver.log").read_text(errors="replace")
    is_silent = is_silent and run.loss["num_processes"] > 0
    run.scene.promise(f"{run.name}: without notice", is_silent, run.loss)
    seconds = next(r for r in run.rows("0002") if "training/global_step" in r)["time"] - run.loss["time"]
    run.scene.promise(f"{run.name}: the next step ends in time", seconds <= MOST_SECONDS_LOST, f"{seconds:.0f} s")


def one_ray_cluster(run: Run, **num_of: int) -> None:
    """Promise one Ray cluster with so many pods of each role, the lost ones included."""
    names = {job.get("status", {}).get("rayClusterName", "") for job in run.changes("rayjobs")} - {""}
    pods = {role: run.pod_names(role) for role in num_of}
    is_kept = len(names) == 1 and num_of == {role: len(found) for role, found in pods.items()}
    run.scene.promise(f"{run.name}: one Ray cluster, another pod", is_kept, f"{names}, {pods}")


def part_killed(run: Run, part: str, kill: Tree) -> None:
    """Promise that a part of the cluster was killed, and started again, while the second attempt trained."""
    began = json.loads(run.kept("store/attempts/0002/owner.json").read_text())["started_at_s"]
    is_kept = began < kill["time"] < run.rows("0002")[-1]["time"] and kill["pid"] != kill["next_pid"]
    run.scene.promise(f"{run.name}: {part} killed while the second attempt trains", is_kept, kill)


def converted(scene: Scene, prefix: str) -> None:
    """Promise the files of a converted model in the store."""
    names = {name.rpartition("/")[2] for name in scene.objects(prefix)}
    scene.promise("convert: the trained model is in the store", names >= MODEL_FILES, ", ".join(sorted(names)))


# -- one run from `helm install` to the uninstalled release


def quickstart(scene: Scene) -> None:
    """`helm install` of the quickstart, its log, clean-up after the TTL, `helm uninstall`, and its model converted."""
    run, user = Run(scene, "opd", "opd-run"), scene.user
    with run.recorded():
        run.install(QUICKSTART, "worker.yaml", "six-steps.yaml")
        phases = lambda: {pod["status"]["phase"] for pod in run.pods("submitter")}  # noqa: E731
        user.until("the submitter runs", lambda: "Running" in phases(), timeout_s=RUN_TIMEOUT_S)
        with run.followed(str(gotools.find("kubectl")), "logs", "-f", f"job/{run.name}", "-n", NAMESPACE):
            run.until_step(1)
            pods = sorted((role_of(pod), pod["status"]["phase"]) for pod in run.pods())
            run.until_ended()
    wanted = [(role, "Running") for role in ("head", "submitter", "worker")]
    scene.promise("head, worker and submitter pods run", pods == wanted, pods)
    steps = run.steps()
    scene.promise("kubectl logs -f shows one line a step", steps == list(range(1, NUM_STEPS + 1)), steps)
    succeeded(run)
    files = ("run.json", "result.json", "attempts/0001/metrics.jsonl", "attempts/0001/driver.log")
    files += (f"global_step_{NUM_STEPS}/COMPLETE",)
    missing = [name for name in files if not any(found.endswith(name) for found in run.objects())]
    scene.promise("result, metrics, log and a complete checkpoint are in S3", not missing, f"without {missing}")
    table = run.opdctl("collect", run.name, "-n", NAMESPACE)
    row = next((line for line in table.splitlines() if run.name in line), "")
    is_shown = "succeeded" in row and f"{NUM_STEPS}/{NUM_STEPS}" in row
    scene.promise("opdctl collect prints the run", is_shown, " ".join(row.split()))

    user.until("the RayJob is cleaned up", lambda: not user.items("rayjobs", namespace=NAMESPACE), timeout_s=180)
    run.until_no_pods(timeout_s=120)
    left, release = _left(run), run.helm("status", run.name)
    is_kept = not left["rayclusters"] and set(left["claims"]) == {"Bound"} and left["configmaps"] > 0
    promise = "after the TTL RayJob, RayCluster and pods are gone; release, ConfigMap and claim remain"
    scene.promise(promise, is_kept and "STATUS: deployed" in release, left)
    run.uninstall()
    left, names = _left(run), scene.objects(f"{PREFIX}/{run.name}/")
    is_kept = set(left["claims"]) == {"Bound"} and not left["configmaps"] and set(run.objects()) <= set(names)
    scene.promise("helm uninstall keeps the checkpoint claim and the store", is_kept, left)

    convert = Run(scene, "convert", "convert")
    with convert.recorded():
        convert.install(EXPERIMENTS / "convert.yaml", "convert.yaml")
        convert.until_ended()
    succeeded(convert)
    converted(scene, f"{PREFIX}/{run.name}/model/")
    convert.uninstall()


def _left(run: Run) -> dict[str, Any]:
    user = run.scene.user
    claims = user.items("persistentvolumeclaims", namespace=NAMESPACE, selector=run.selector)
    return {
        "rayclusters": len(user.items("rayclusters", namespace=NAMESPACE)),
        "configmaps": len(user.items("configmaps", namespace=NAMESPACE, selector=run.selector)),
        "claims": [claim["status"]["phase"] for claim in claims],
    }


# -- the other kinds


def kinds(scene: Scene) -> None:
    """`make submit` of the other kinds, and of a file with a wrong path."""
    _upload_inputs(scene)
    refused = Run(scene, "opd", "refused")
    with refused.recorded():
        said = refused.submit(QUICKSTART, "wrong-path.yaml")
    roles = {role_of(pod) for pod in refused.changes("pods")}
    is_kept = "/data/missing.parquet" in said and "exit " in said and roles == {"check"}
    is_kept = is_kept and not list(refused.changes("rayjobs"))
    promise = "a wrong data path fails the install: value, path and fix are said, no RayJob and no Ray cluster exist"
    scene.promise(promise, is_kept, f"pods {roles}; {said[-300:]}")  # the check's pod stays for an hour, for its log

    files = ("worker.yaml", "grpo-from-s3.yaml")
    grpo = _submit(scene, "grpo", SPECS / "grpo.yaml", *files, sets=("trainer.save_freq=3",))
    log = grpo.kept(f"store/attempts/{grpo.attempts()[0]}/driver.log").read_text(errors="replace")
    inputs = [f"s3://{BUCKET}/inputs/{name}" for name in ("student", "train.parquet", "heldout.parquet")]
    scene.promise("grpo: model and data come from s3://", all(name in log for name in inputs), inputs)
    whole(grpo, last_step=3)

    _stage_database(scene)
    database = (
        "agent.database_dir=/databases/travel",
        "cluster.mounts=[{claim: travel-database, path: /databases/travel}]",
    )
    files = ("worker.yaml", "opd-agent.yaml")
    agent = _submit(scene, "opd-agent", EXPERIMENTS / "opd-agent-quickstart.yaml", *files, sets=database)
    whole(agent, last_step=2)
    claims = {
        (role_of(pod), volume["persistentVolumeClaim"]["claimName"])
        for pod in agent.changes("pods")
        for volume in pod["spec"]["volumes"]
        if volume["name"] == "mount-0"
    }
    wanted = {("head", "travel-database"), ("worker", "travel-database")}
    scene.promise("opd-agent: head and worker mount the claim with the tool database", wanted <= claims, claims)

    evaluation = _submit(scene, "eval", SPECS / "eval.yaml", "worker.yaml")
    names = [name for name in evaluation.objects() if name.endswith(".parquet")]
    is_kept = bool(names) and evaluation.kept("store/result.json").is_file()
    scene.promise("eval: result and generations are in the store", is_kept, names)

    of_grpo = f"s3://{BUCKET}/{PREFIX}/grpo"
    sets = (f"convert.checkpoint={of_grpo}/checkpoints/global_step_3", f"convert.target={of_grpo}/model")
    _submit(scene, "convert", EXPERIMENTS / "convert.yaml", "convert.yaml", sets=sets)
    converted(scene, f"{PREFIX}/grpo/model/")


def _submit(scene: Scene, kind: str, experiment: Path, *overrides: str, sets: tuple[str, ...] = ()) -> Run:
    run = Run(scene, kind, kind)
    with run.recorded():
        run.submit(experiment, *overrides, sets=sets)
        with run.followed():
            run.until_ended()
    run.uninstall()
    succeeded(run)
    return run


def _upload_inputs(scene: Scene) -> None:
    """Put the toy task's student and rows and the agent's database into the store."""
    with tempfile.TemporaryDirectory() as folder:
        for path in write_parquet(folder, seed=1):
            scene.files.put_file(str(path), f"{BUCKET}/inputs/{path.name}")
        folders = {"database": make_world(Path(folder) / "database"), "student": Path(STUDENT_DIR)}
        for name, source in folders.items():
            for path in sorted(path for path in source.rglob("*") if path.is_file()):
                scene.files.put_file(str(path), f"{BUCKET}/inputs/{name}/{path.relative_to(source)}")


def _stage_database(scene: Scene) -> None:
    """Fill the claim with the database by manifests/stage.yaml, with image, source and the store's port set."""
    job, policy = yaml.safe_load_all((ROOT / "manifests/stage.yaml").read_text())
    for part in (job, policy):
        part["metadata"] = {"name": "stage-database", "labels": part["metadata"]["labels"]}
    pod = job["spec"]["template"]["spec"]
    pod["volumes"][0]["persistentVolumeClaim"]["claimName"] = "travel-database"  # of manifests/cluster
    [container] = pod["containers"]
    container["image"] = yaml.safe_load(scene.image.read_text())["cluster"]["image"]["ref"]
    container["command"][3:] = [f"s3://{BUCKET}/inputs/database", "--to", "/claim"]
    container["envFrom"] = [{"secretRef": {"name": S3_SECRET}}]
    port = {"to": [{"ipBlock": {"cidr": f"{NODE_IP}/32"}}], "ports": [{"protocol": "TCP", "port": S3_PORT}]}
    policy["spec"]["egress"].append(port)
    scene.user.create([policy, job], namespace=NAMESPACE)
    done = lambda: scene.user.get("job", "stage-database", namespace=NAMESPACE)["status"].get("succeeded")  # noqa: E731
    scene.user.until("the claim has the database", done)


# -- two worker pods

_PROCESSES = """import json,os,pathlib
ranks = 0
for path in pathlib.Path('/proc').glob('[0-9]*/cmdline'):
    try:
        ranks += path.read_bytes().startswith(b'ray::WorkerDict')
    except OSError:
        pass
print(json.dumps({'token': os.path.exists('/var/run/secrets/kubernetes.io'), 'uid': os.getuid(), 'ranks': ranks}))"""
_DASHBOARD = """import json,os,urllib.request,urllib.error
def ask(headers):
    request = urllib.request.Request('http://127.0.0.1:8265/api/jobs/', headers=headers)
    try:
        return urllib.request.urlopen(request, timeout=20).status
    except urllib.error.HTTPError as error:
        return error.code
token = os.environ.get('RAY_AUTH_TOKEN', '')
print(json.dumps({'without': ask({}), 'with': ask({'Authorization': 'Bearer ' + token})}))"""
_CONTAINERS = {"head": "ray-head", "worker": "ray-worker", "submitter": "submitter"}


def two_workers(scene: Scene) -> None:
    """One run on two worker pods, and at its first step users, tokens, the dashboard and secrets."""
    run = Run(scene, "opd", "two-workers")
    with run.recorded():
        run.install(QUICKSTART, *FAULTS, "two-workers.yaml")
        with run.followed():
            run.until_step(1)
            pods = run.pods()
            seen = {pod["metadata"]["name"]: _inside(scene, pod, _PROCESSES) for pod in pods}
            [head] = run.pods("head")
            dashboard = _inside(scene, head, _DASHBOARD)
            secrets = _secrets(scene)  # now: KubeRay deletes the token with its cluster
            run.until_ended()
        said = _words(run)
    run.uninstall()
    ranks = [seen[pod["metadata"]["name"]]["ranks"] for pod in pods if role_of(pod) == "worker"]
    shards = {name.rpartition("/")[2] for name in run.objects() if "/actor/model_world_size_" in name}
    is_spread = ranks == [1, 1] and shards == {f"model_world_size_2_rank_{rank}.pt" for rank in (0, 1)}
    scene.promise("a rank on each of two worker pods, one job", is_spread, f"ranks {ranks}; {shards}")
    succeeded(run)
    whole(run)
    labels = scene.admin.get("namespace", NAMESPACE)["metadata"]["labels"]
    level = labels.get("pod-security.kubernetes.io/enforce")
    scene.promise("the namespace enforces Pod Security restricted", level == "restricted", level)
    is_kept = len(seen) == 4 and all(one["uid"] for one in seen.values())
    scene.promise("no process runs as root", is_kept, [one["uid"] for one in seen.values()])
    is_kept = len(seen) == 4 and not any(one["token"] for one in seen.values())
    scene.promise("no pod has a token of the API server", is_kept, f"{len(seen)} pods")
    is_kept = dashboard["without"] in (401, 403) and dashboard["with"] == 200
    scene.promise("Ray's dashboard refuses a call without the token", is_kept, dashboard)
    said |= {path.name: path.read_bytes() for path in run.kept("store").rglob("*.*") if path.is_file()}
    found = [(name, text) for name, value in secrets.items() for text, data in said.items() if value in data]
    kinds_of = {name.split("/")[1] for name in secrets}
    is_kept = not found and kinds_of == {"AWS_SECRET_ACCESS_KEY", "auth_token"} and len(said) > 6
    observed = f"{len(said)} texts, found {found} of {sorted(secrets)}"
    scene.promise("no log, event, ConfigMap or value has a secret", is_kept, observed)


def _inside(scene: Scene, pod: Tree, script: str) -> Tree:
    """Return the JSON that a Python script in a pod's container prints; only an administrator may exec."""
    place = ("-n", NAMESPACE, "-c", _CONTAINERS[role_of(pod)])
    return json.loads(scene.admin.run("exec", pod["metadata"]["name"], *place, "--", "python", "-c", script))


def _words(run: Run) -> dict[str, bytes]:
    """Return every text that may have a secret, by its place."""
    user = run.scene.user
    said = {
        "events": user.run("get", "events", "-n", NAMESPACE, "-o", "json"),
        "configmaps": user.run("get", "configmaps", "-n", NAMESPACE, "-o", "json"),
        "values": run.helm("get", "values", run.name, "--all"),
        "manifest": run.helm("get", "manifest", run.name),
    }
    for name in (pod["metadata"]["name"] for pod in run.pods(deleted=True)):
        with contextlib.suppress(KubeError):  # workers go first when a run has ended; the driver's log has their lines
            said[name] = user.run("logs", name, "-n", NAMESPACE, "--all-containers")
    return {name: text.encode() for name, text in said.items()}


def _secrets(scene: Scene) -> dict[str, bytes]:
    """Return the secret values of the store and of Ray, plain and in base64, by Secret, key and form."""
    found: dict[str, bytes] = {}
    for secret in scene.user.items("secrets", namespace=NAMESPACE):
        for key, encoded in secret.get("data", {}).items():
            if key in ("AWS_SECRET_ACCESS_KEY", "auth_token"):
                place = f"{secret['metadata']['name']}/{key}"
                found |= {f"{place}/plain": base64.b64decode(encoded), f"{place}/base64": encoded.encode()}
    return found


# -- losses


def worker_lost(scene: Scene) -> None:
    """A worker's pod is lost in mid-step; in the second attempt the kubelet is killed under `opdctl logs -f`."""
    run = Run(scene, "opd", "worker-lost")
    with run.recorded():
        run.install(QUICKSTART, *FAULTS)
        with run.followed():
            _lose_in_mid_step(run, "worker")
            run.until_step(4, after=run.until_attempt(2))
            kill = scene.kill_part("kubelet")
            run.until_ended()
    run.uninstall()
    succeeded(run)
    one_ray_cluster(run, head=1, worker=2)
    whole(run, num_attempts=2, most_recomputed=LOST)
    lost_without_notice(run)
    part_killed(run, "kubelet", kill)
    wanted = [step for _, step in run.training()]
    promise = "kubelet killed: opdctl logs -f goes through it without a gap or repeat"
    scene.promise(promise, run.steps() == wanted, f"{run.steps()}, the store has {wanted}")


def head_lost(scene: Scene) -> None:
    """The head is lost in mid-step; the operator is killed while the second attempt trains."""
    run = Run(scene, "opd", "head-lost")
    with run.recorded():
        run.install(QUICKSTART, *FAULTS)
        with run.followed():
            _lose_in_mid_step(run, "head")
            run.until_step(3, after=run.until_attempt(2))
            kill = scene.kill_part("ray-operator")
            run.until_ended()
    run.uninstall()
    succeeded(run)
    one_ray_cluster(run, head=2)
    whole(run, num_attempts=2, most_recomputed=LOST)
    lost_without_notice(run)
    part_killed(run, "the operator", kill)


def _lose_in_mid_step(run: Run, role: str) -> None:
    """Lose a pod after step 3, whose result the checkpoint of step 2 does not have."""
    run.until_step(3)
    time.sleep(1.0)  # a step takes some seconds
    run.lose(run.pods(role)[0])


def submitter_lost(scene: Scene) -> None:
    """Four submitters are lost, one after the other; meanwhile the store answers 503 for 30 s."""
    run = Run(scene, "opd", "submitter-lost")
    sets = (f"trainer.total_steps={NUM_MANY_STEPS}", "trainer.save_freq=20", "cluster.secrets.store=proxied-store")
    with run.recorded(), _proxied_store(scene, "proxied-store") as proxy:
        run.install(QUICKSTART, *FAULTS, sets=sets)
        with run.followed():
            run.until_step(1)
            began_s, proxy.is_away = time.monotonic(), True
            for number in range(NUM_SUBMITTERS_LOST):
                run.lose(scene.user.until("a submitter runs", lambda: _running(run, "submitter"))[0])
                if number == 0:
                    time.sleep(STORE_AWAY_S)
                    proxy.is_away = False
                    seconds, num_refused = time.monotonic() - began_s, proxy.num_refused
            run.until_ended()
    run.uninstall()
    names = run.pod_names("submitter")
    promise = "four submitters deleted, each followed by another"
    scene.promise(promise, len(names) == NUM_SUBMITTERS_LOST + 1, f"{len(names)} submitters")
    is_kept = num_refused > 0 and seconds >= STORE_AWAY_S
    scene.promise("the store answered 503 for 30 s", is_kept, f"{num_refused} requests refused in {seconds:.0f} s")
    succeeded(run)
    whole(run, last_step=NUM_MANY_STEPS)


def _running(run: Run, role: str) -> list[Tree]:
    return [pod for pod in run.pods(role) if pod["status"]["phase"] == "Running"]


@contextmanager
def _proxied_store(scene: Scene, name: str) -> Iterator[FailingProxy]:
    """Run a proxy that answers 503 on demand, with the Secret that leads to it; overrides/common.yaml opens its port."""
    port = 9001
    store = {**scene.store(), "AWS_ENDPOINT_URL": f"http://{NODE_IP}:{port}"}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": store}
    with FailingProxy(server_port=S3_PORT, address=NODE_IP, port=port).running() as proxy:
        scene.user.create([secret], namespace=NAMESPACE)
        try:
            yield proxy
        finally:
            scene.user.run("delete", "secret", name, "-n", NAMESPACE)


def evicted_preempted(scene: Scene) -> None:
    """The worker is evicted; in the second attempt a pod of a higher PriorityClass takes its place for a while."""
    run, urgent_m = Run(scene, "opd", "evicted-preempted"), 1000
    [node] = scene.admin.items("nodes")
    # So large a worker leaves no room for the urgent pod. The chart's budget would refuse the eviction.
    worker_m = int(node["status"]["allocatable"]["cpu"]) * 1000 - urgent_m + 100
    with run.recorded():
        sets = (f"cluster.worker.requests.cpu={worker_m}m", "cluster.disruption.budget=false")
        run.install(QUICKSTART, *FAULTS, sets=sets)
        with run.followed():
            run.until_step(2)
            metadata = {"name": run.pods("worker")[0]["metadata"]["name"], "namespace": NAMESPACE}
            eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
            path = f"/api/v1/namespaces/{NAMESPACE}/pods/{metadata['name']}/eviction"
            scene.admin.run("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))
            run.until_step(4, after=run.until_attempt(2))
            _preempt(scene, run, urgent_m)
            run.until_ended()
    run.uninstall()
    reasons = {
        condition["reason"]
        for pod in run.changes("pods")
        for condition in pod["status"].get("conditions", ())
        if condition["type"] == "DisruptionTarget" and role_of(pod) == "worker"
    }
    promise = "a worker evicted, another preempted by a higher PriorityClass"
    scene.promise(promise, {"EvictionByEvictionAPI", "PreemptionByScheduler"} <= reasons, reasons)
    succeeded(run)
    whole(run, num_attempts=3)


def _preempt(scene: Scene, run: Run, cpu_m: int) -> None:
    """Run a pod that needs the worker's share and outranks it, for a moment."""
    name, kind = "urgent", {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    scene.admin.create([{**kind, "metadata": {"name": name}, "value": 1000}])
    container = {
        "name": name,
        "image": run.pods("head")[0]["spec"]["containers"][0]["image"],
        "imagePullPolicy": "Never",
        "command": ["sleep", "3600"],
        "resources": {"requests": {"cpu": f"{cpu_m}m"}},
    }
    spec = {"priorityClassName": name, "terminationGracePeriodSeconds": 0, "containers": [container]}
    try:
        scene.admin.create([{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}])
        runs = lambda: scene.admin.get("pod", name)["status"]["phase"] == "Running"  # noqa: E731
        scene.admin.until("the urgent pod runs", runs, timeout_s=200)
        time.sleep(2)
    finally:
        scene.admin.run("delete", "pod", name, "--wait=true", "--ignore-not-found")
        scene.admin.run("delete", "priorityclass", name)


SCENARIOS: dict[str, Callable[[Scene], None]] = {
    "quickstart": quickstart,
    "kinds": kinds,
    "two-workers": two_workers,
    "worker-lost": worker_lost,
    "head-lost": head_lost,
    "submitter-lost": submitter_lost,
    "evicted-preempted": evicted_preempted,
}
