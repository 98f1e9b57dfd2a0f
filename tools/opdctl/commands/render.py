"""`opdctl render`: from an experiment file to the manifests that Helm would install."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opdctl.console import binary_file, note

if TYPE_CHECKING:
    from opdctl.chart.values import Experiment

File = Annotated[Path, typer.Argument(metavar="EXP.yaml", help="Experiment file; with a `matrix` a sweep.")]
Overlays = Annotated[list[Path] | None, typer.Option("--values", "-f", help="A file whose keys win over it.")]
Site = Annotated[
    Path | None,
    typer.Option("--site", envvar="OPDCTL_SITE", help="Keys that all runs on a cluster share; the experiment's win."),
]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Set a key of the spec.")]
Image = Annotated[str | None, typer.Option("--image", metavar="REF", help="Image with its digest: cluster.image.ref.")]
Into = Annotated[Path | None, typer.Option("--into", help="Folder for one file a run; stdout by default.")]
Charts = Annotated[Path | None, typer.Option("--charts", help="Folder of the charts; ./charts or the tool's own.")]
Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Namespace of the release.")]
Env = Annotated[bool, typer.Option("--env", help="Apply the original's environment variables, over the file.")]
Name = Annotated[str | None, typer.Option("--name", help="Name of the run; same as --set name=NAME.")]


def render(
    experiment: File,
    site: Site = None,
    values: Overlays = None,
    sets: Sets = None,
    env: Env = False,
    name: Name = None,
    image: Image = None,
    into: Into = None,
    charts: Charts = None,
    namespace: Namespace = "default",
) -> None:
    """Render the manifests of an experiment, or of every cell of its `matrix`, exactly as `helm template` does.

    Example: `opdctl render manifests/experiments/quickstart.yaml --image registry.example/opd@sha256:...`
    """
    from opdctl.chart.helm import find_chart, template

    for item in experiments_of(experiment, site=site, values=values, sets=sets, env=env, name=name, image=image):
        text = template(item, chart=find_chart(item.spec.kind, charts), namespace=namespace)
        if into is None:
            print(text, end="" if text.endswith("\n") else "\n")
            continue
        with binary_file(into / f"{item.run_id}.yaml") as file:
            file.write(text.encode())


def experiments_of(
    experiment: Path,
    *,
    site: Path | None,
    values: list[Path] | None,
    sets: list[str] | None,
    env: bool = False,
    name: str | None,
    image: str | None,
) -> list[Experiment]:
    """Read the experiments that a command line names, and print the remarks about them.

    Raises:
        SpecError: a file is unusable.
    """
    from opdctl.chart.values import load_experiments

    named = [f"name={name}"] if name is not None else []
    found = load_experiments(
        experiment, site=site, overlays=values or [], env=os.environ if env else {}, sets=[*(sets or []), *named], image=image
    )  # fmt: skip
    for item in found:
        for remark in item.notes:
            note(f"note: {item.run_id}: {remark}")
    return found
