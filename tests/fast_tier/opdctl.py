"""Calls opdctl as an `opd-user` of the fast tier, each time as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.charts.helm import CHARTS, EXPERIMENTS
from tests.fast_tier.runs import layers
from tests.fast_tier.tier import ROOT, FastTier
from tests.processes import ended

import gotools

TIMEOUT_S = 300


class Tool:
    """opdctl in one namespace; `transcript.txt` in the folder has each command with its output."""

    def __init__(self, tier: FastTier, namespace: str, folder: Path, **environment: str):
        self.tier, self.namespace, self.folder = tier, namespace, folder
        self.environment = {
            **tier.user(namespace).environment,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tools")]),
            "OPDCTL_HELM": str(gotools.find("helm")),
            "OPDCTL_CHARTS": str(CHARTS),
            "OPDCTL_CACHE_DIR": str(folder / "cache"),
            "COLUMNS": "400",
            **environment,
        }

    def __call__(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        """A command's end; the namespace is the kubeconfig's."""
        command = (sys.executable, "-m", "opdctl.cli", *arguments)
        done = ended(*command, env=self.environment, cwd=self.folder, timeout=TIMEOUT_S)
        with open(self.folder / "transcript.txt", "a") as file:
            print("$ opdctl", *arguments, f"\n{done.stdout}{done.stderr}[exit code {done.returncode}]\n", file=file)
        return done

    def submit(
        self, experiment: str, *words: object, layer: dict[str, Any] | None = None, name: str, verb: str = "submit"
    ) -> subprocess.CompletedProcess[str]:
        """`opdctl submit` (or another verb) of an example under a name, with values over it."""
        files = layers(self.folder, *([layer] if layer else []))
        return self(verb, EXPERIMENTS[experiment], *files, "--name", name, *words)
