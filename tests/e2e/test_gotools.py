"""Go programs by version: where they come from, and what is said when one cannot be had."""

import os
from pathlib import Path

import pytest

import gotools

LOCKED = {name: program for name, program in gotools.PROGRAMS.items() if program.lock}


@pytest.mark.parametrize("name", LOCKED)
def test_a_locked_program_is_kept_in_its_lock_by_an_import(name):
    folder = gotools.ROOT / LOCKED[name].lock
    assert f'_ "{LOCKED[name].package}"' in (folder / "tools.go").read_text()
    module, version = LOCKED[name].locked()
    assert f"{module} {version} h1:" in (folder / "go.sum").read_text()


def test_another_lock_is_another_folder_of_the_cache(tmp_path, monkeypatch):
    (tmp_path / "lock").mkdir()
    (tmp_path / "lock" / "go.mod").write_text("module m\n\nrequire example.com/a/b v1.2.3\n")
    (tmp_path / "lock" / "go.sum").write_text("one")
    monkeypatch.setattr(gotools, "ROOT", tmp_path)
    program = gotools.Program(package="example.com/a/b/cmd/c", lock="lock")
    before = program.key()
    assert before.startswith("v1.2.3-")
    (tmp_path / "lock" / "go.sum").write_text("two")
    assert program.key() != before


@pytest.mark.cluster
def test_sources_that_a_build_has_left_are_found_without_a_network(monkeypatch):
    found = gotools.module("ray-operator")
    monkeypatch.setenv("GOPROXY", "off")
    monkeypatch.setenv("GOSUMDB", "sum.example.com+00000000+AAAA")  # whose answers no cache has
    assert gotools.module("ray-operator") == found


def test_without_go_the_error_names_the_program_and_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv(gotools.CACHE_VARIABLE, str(tmp_path))
    with pytest.raises(gotools.ToolError, match="Go is needed for kube-apiserver and is not on PATH"):
        gotools.install("kube-apiserver")


def test_a_build_that_fails_names_the_program_and_leaves_nothing_behind(tmp_path, monkeypatch):
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text("#!/bin/sh\necho 'no such module' >&2\nexit 1\n")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{go.parent}{os.pathsep}{os.defpath}")
    monkeypatch.setenv(gotools.CACHE_VARIABLE, str(tmp_path / "cache"))
    with pytest.raises(gotools.ToolError, match=r"kwok cannot be had: `go build` ended with 1:\nno such module"):
        gotools.install("kwok")
    assert not gotools.installed("kwok").exists()
    assert [path for path in Path(tmp_path / "cache").iterdir() if path.is_dir()] == []


def test_a_name_that_is_no_program_is_refused_with_those_there_are(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["gotools.py", "install", "minikube"])
    with pytest.raises(SystemExit):
        gotools.main()
    assert "'minikube' is neither a group (charts, fast-tier, cluster, sbom) nor one of helm" in capsys.readouterr().err
