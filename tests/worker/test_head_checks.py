"""Checking a head compiles no layer that no step would run."""

from __future__ import annotations

import pytest
import torch

from opd.worker.engines import StudentEngine, TeacherEngine, _HeadEngine


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "num_graphs"), [(TeacherEngine, 1), (StudentEngine, 0)])
def test_a_students_layers_are_not_compiled_without_gradients(kind, num_graphs, monkeypatch):
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    layer = torch.compile(lambda x: 2 * x, backend=backend)
    monkeypatch.setattr(_HeadEngine, "check_head", lambda self, name: layer(torch.ones(2)))
    engine = object.__new__(kind)
    engine.check_head("model")
    assert len(graphs) == num_graphs
    layer(torch.ones(2))
    assert len(graphs) == 1
