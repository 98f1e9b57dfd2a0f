"""A node whose daemons come up late is waited for; one that never comes is an error."""

import os

import pytest
from ray._private import services

from opd.compat.ray_start import patient_start

WAIT = "RAY_gcs_server_port_wait_time_s"


@pytest.fixture(autouse=True)
def _nobody_set_the_wait(monkeypatch):
    monkeypatch.delenv(WAIT, raising=False)


def looks(monkeypatch, *, num_failures):
    """Ray's own look for a node: it fails so many times; what was asked for is kept in the list."""
    asked = []

    def get_node(gcs_address, node_id):
        asked.append((gcs_address, node_id))
        if len(asked) <= num_failures:
            raise RuntimeError("not registered")
        return {"node_manager_port": 1}

    monkeypatch.setattr(services, "get_node", get_node)
    return asked


def test_a_node_that_registers_late_is_found_in_one_call(monkeypatch):
    asked = looks(monkeypatch, num_failures=3)
    with patient_start():
        assert services.get_node("head:6379", "n1") == {"node_manager_port": 1}
    assert asked == [("head:6379", "n1")] * 4


def test_a_node_that_never_registers_is_ray_s_own_error(monkeypatch):
    looks(monkeypatch, num_failures=10**6)
    with patient_start(timeout_s=0.3), pytest.raises(RuntimeError, match="not registered"):
        services.get_node("head:6379", "n1")


def test_ray_is_as_it_was_afterwards(monkeypatch):
    looks(monkeypatch, num_failures=0)
    before = services.get_node
    with patient_start(timeout_s=90):
        assert os.environ[WAIT] == "90"
    assert services.get_node is before
    assert WAIT not in os.environ


def test_a_wait_that_the_user_set_stays(monkeypatch):
    looks(monkeypatch, num_failures=0)
    monkeypatch.setenv(WAIT, "7")
    with patient_start():
        assert os.environ[WAIT] == "7"
    assert os.environ[WAIT] == "7"
