"""`opdctl render`: from an experiment file to the manifests that Helm would install."""

import os
from pathlib import Path
from typing import Annotated

import typer

from opdctl.chart.helm import template
from opdctl.chart.values import Experiment, load_experiments
from opdctl.console import binary_file, note

File = Annotated[Path, typer.Argument(metavar="EXP.yaml", help="Experiment file; `matrix`: a sweep.")]
Site = Annotated[Path | None, typer.Option("--site", metavar="FILE", envvar="OPDCTL_SITE", help="What all runs share.")]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Set a key of the spec.")]
Into = Annotated[Path | None, typer.Option("--into", metavar="DIR", help="Folder for one file a run.")]
Namespace = Annotated[str, typer.Option("--namespace", "-n", metavar="NAME", help="Namespace of the release.")]
Env = Annotated[bool, typer.Option("--env", help="Apply the original's environment variables.")]
Name = Annotated[str | None, typer.Option("--name", metavar="NAME", help="Name of the run.")]


def render(
    experiment: File,
    site: Site = None,
    sets: Sets = None,
    env: Env = False,
    name: Name = None,
    into: Into = None,
    namespace: Namespace = "default",
) -> None:
    """Render the manifests of an experiment: as `helm template` does, for every cell of its `matrix`.

    Example: `opdctl render exp.yaml --site site.yaml --into manifests`
    """
    for item in experiments_of(experiment, site=site, sets=sets, env=env, name=name):
        text = template(item, namespace=namespace)
        if into is None:
            print(text, end="" if text.endswith("\n") else "\n")
            continue
        with binary_file(into / f"{item.run_id}.yaml") as file:
            file.write(text.encode())


def experiments_of(
    experiment: Path, *, site: Path | None, sets: list[str] | None, env: bool = False, name: str | None
) -> list[Experiment]:
    """Read the experiments that a command line names, and print the remarks about them."""
    all_sets = [*(sets or []), *([f"name={name}"] if name is not None else [])]
    variables = os.environ if env else {}
    found = load_experiments(experiment, site=site, env=variables, sets=all_sets)
    for item in found:
        for remark in item.notes:
            note(f"note: {item.run_id}: {remark}")
    return found
