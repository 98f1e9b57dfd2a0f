"""`opdctl doctor` names what is broken in each cluster of clusters/broken.yaml, and passes each of clusters/odd.yaml.

Where a case is about nodes, kube-scheduler binds as many pods of the run as doctor has said.
"""

import re

import pytest
import yaml
from tests.charts.helm import CHARTS, SITES
from tests.fast_tier.patients import RUN, Hospital, cases
from tests.opdctl.in_process import invoke

import gotools
from opdctl.chart.helm import template
from opdctl.chart.values import load_experiments
from opdctl.doctor.rendered import groups_of
from opdctl.kube.dry_run import rendered_objects

BROKEN, ODD = cases("broken"), cases("odd")
# Cases that differ in what the scheduler looks at, on a cluster whose pods and nodes doctor may see.
OF_NODES = {
    "taint-without-toleration", "gpu-type-that-no-node-has", "too-few-cpus-beside-eight-gpus", "too-little-memory",
    "one-node-for-two-workers", "gpus-in-use-by-others", "volume-in-another-zone", "affinity-to-a-pod-that-is-not-there",
    "tainted-nodes-beside-enough-clean-ones", "arm-nodes-among-them", "ninety-six-cores-beside-eight-gpus-and-default-requests",
    "one-box-that-is-server-too-without-quota-and-pod-security", "two-workers-on-three-nodes-one-half-in-use",
    "volume-and-workers-in-one-zone", "spare-nodes-cordoned-or-not-ready", "karpenter-makes-the-gpu-nodes",
    "preferences-and-a-toleration-of-everything", "two-workers-on-one-machine-of-sixteen-gpus",
}  # fmt: skip


@pytest.fixture(scope="module")
def hospital(parts, tmp_path_factory):
    found = Hospital(tmp_path_factory.mktemp("hospital"))
    try:
        found.start([*BROKEN, *ODD])
        yield found
    finally:
        found.stop()


@pytest.fixture
def doctor(hospital, tmp_path, monkeypatch, capsys):
    """Doctor's exit code and its findings in a case's cluster, each with its fix on the same line, by their state."""
    for variable in (
        "OPDCTL_SITE",
        "OPDCTL_STORE",
        "AWS_ACCESS_KEY_ID",
        "AWS_PROFILE",
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
    ):
        monkeypatch.delenv(variable, raising=False)
    home = {"HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true", "NO_PROXY": "*"}
    tools = {"OPDCTL_HELM": str(gotools.find("helm")), "OPDCTL_CHARTS": str(CHARTS)}
    for name, value in {**home, **tools}.items():
        monkeypatch.setenv(name, value)

    def call(case):
        monkeypatch.setenv("KUBECONFIG", str(hospital.kubeconfig(case)))
        values = tmp_path / "values.yaml"
        values.write_text(yaml.safe_dump(case.get("values", {"seed": 1})))
        with hospital.cluster(case):
            words = ["doctor", str(RUN), "--site", str(SITES[case["platform"]]), "-f", str(values), "-n", case["name"]]
            code = invoke(*words)
            shown = capsys.readouterr()
            text = shown.out.replace("\n" + " " * 22, " ")
            if case["name"] in OF_NODES:
                said = re.findall(r" placement +(\w+): (\d+) of \d+ ", text)
                hospital.schedules(case, groups(case, values), {role: int(num) for role, num in said})
        findings = {}
        for line in text.splitlines():
            state = line[:11].strip()
            findings.setdefault(state, []).append(line)
        return code, findings, shown.out + shown.err

    return call


def groups(case, values):
    """The run's pods in a case, as its chart renders them."""
    [item] = load_experiments(RUN, site=SITES[case["platform"]], overlays=[values], env={})
    text = template(item, chart=CHARTS / item.spec.kind, namespace=case["name"], timeout_s=60)
    return groups_of(rendered_objects(text), case["name"])


def named(lines, words):
    return [line for line in lines if all(word in line for word in words)]


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case["name"])
def test_a_cluster_that_is_broken_in_one_way_is_named_with_its_mend(doctor, case):
    code, findings, text = doctor(case)
    missing = findings.get("MISSING", [])
    assert named(missing, case["says"]), text
    assert all("fix: " in line for line in missing), text
    assert code == 1


@pytest.mark.parametrize("case", ODD, ids=lambda case: case["name"])
def test_a_cluster_that_is_odd_and_sound_passes(doctor, case):
    code, findings, text = doctor(case)
    assert "MISSING" not in findings, text
    assert code == 0
    if "notes" in case:
        assert named([*findings.get("warning", ()), *findings.get("not checked", ())], case["notes"]), text
