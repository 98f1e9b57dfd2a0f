"""Charts pushed to an OCI registry by `make charts-push`, and installed from there."""

import pytest
from tests.charts.helm import EXPERIMENTS
from tests.e2e.cluster.probes import answers
from tests.e2e.cluster.processes import Processes, minimal_environment
from tests.fast_tier.runs import layers, reached
from tests.fast_tier.tier import ROOT
from tests.ports import free_ports
from tests.processes import ended

import gotools
from opd.experiment import FILE_KINDS

NAMESPACE = "registry"


@pytest.fixture
def registry(tmp_path):
    """The address of an empty registry without TLS, which keeps all in memory."""
    [port] = free_ports(1)
    processes = Processes(tmp_path / "logs", environment=minimal_environment(tmp_path))
    try:
        processes.start("registry", [gotools.find("registry"), f"--port={port}"])
        processes.wait_for("registry", lambda: answers(f"http://localhost:{port}/v2/"))
        yield f"oci://localhost:{port}/team/charts"
    finally:
        processes.stop_all()


def test_pushed_charts_install_without_a_clone(tier, registry, tmp_path):
    tier.namespace(NAMESPACE)
    command = ["make", "--silent", "charts-push", f"REGISTRY={registry}", "ARGS=--plain-http"]
    done = ended(*command, cwd=ROOT, timeout=150)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert said.count("Digest: sha256:") == len(FILE_KINDS)
    values = ["-f", EXPERIMENTS["quickstart"], *layers(tmp_path)]
    done = tier.helm(NAMESPACE, "install", "pulled", f"{registry}/opd", "--plain-http", *values)
    assert done.returncode == 0, done.stderr
    try:
        reached(tier, NAMESPACE, "pulled", "Initializing", "Running")
    finally:
        tier.helm(NAMESPACE, "uninstall", "pulled")
