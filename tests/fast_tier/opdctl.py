"""Calls opdctl as an `opd-user` of the fast tier, each time as a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.charts.helm import EXPERIMENTS, IMAGE
from tests.fast_tier.tier import ROOT, FastTier
from tests.processes import ended

import gotools
from opd.experiment.load import read_document
from opd.experiment.tree import merge

TIMEOUT_S = 300


class Tool:
    """opdctl in one namespace; `transcript.txt` in the folder has each command with its output."""

    def __init__(self, tier: FastTier, namespace: str, folder: Path, **environment: str):
        self.tier, self.namespace, self.folder = tier, namespace, folder
        self.environment = {
            **tier.user(namespace).environment,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tools")]),
            "OPDCTL_HELM": str(gotools.find("helm")),
            "COLUMNS": "400",
            **environment,
        }

    def __call__(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        """A command's end; the namespace is the kubeconfig's."""
        command = (sys.executable, "-m", "opdctl", *arguments)
        done = ended(*command, env=self.environment, cwd=self.folder, timeout=TIMEOUT_S)
        with open(self.folder / "transcript.txt", "a") as file:
            print("$ opdctl", *arguments, f"\n{done.stdout}{done.stderr}[exit code {done.returncode}]\n", file=file)
        return done

    def submit(
        self, experiment: str, *words: object, layer: dict[str, Any] | None = None, name: str, verb: str = "submit"
    ) -> subprocess.CompletedProcess[str]:
        """`opdctl submit` (or another verb) of an example under a name, with values over it."""
        tree = merge(merge(read_document(EXPERIMENTS[experiment]).tree, IMAGE), layer or {})
        file = self.folder / "exp.json"
        file.write_text(json.dumps(tree))
        return self(verb, file, "--name", name, *words)
