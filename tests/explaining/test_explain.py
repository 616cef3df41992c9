"""`calque.explain`: what becomes of a program, with nothing changed."""

import json

import pytest
import torch
from torch import nn

import calque


@pytest.fixture(scope="module")
def report() -> calque.Report:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU()).to("jax")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    report = calque.explain(model, torch.eye(5, 4, device="jax"))
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(p.grad is None for p in model.parameters())
    return report


def test_a_model_is_captured_by_every_entry_point(report):
    assert report.captured
    assert [(one.name, one.captured) for one in report.entry_points] == [
        ("calque.jit", True),
        ("calque.trace", True),
        ("torch.compile", True),
    ]


def test_operators_have_what_serves_them(report):
    served = {one.name: one.served for one in report.operators}
    assert served["aten::addmm"] == "rule"
    assert set(served.values()) <= {"rule", "decomposition", "fallback"}


def test_xlas_costs_and_the_state_are_told(report):
    assert report.flops > 2 * 5 * 4 * 3
    assert report.memory["arguments"] > 0
    assert any("0.weight" in name for names in report.lifted.values() for name in names)
    assert report.written >= 3  # BatchNorm's statistics
    assert report.differences == []
    assert report.host_reads == []


def test_it_is_text_json_and_a_table(report):
    text = str(report)
    assert "calque.jit: yes" in text
    assert "floating-point operations" in text
    assert json.loads(json.dumps(report.to_dict()))["captured"] is True
    page = report._repr_html_()
    assert page.startswith("<table>")
    assert "aten::addmm" in page


def test_what_is_refused_has_the_line_and_the_remedy():
    def f(x):
        if x.sum() > 0:
            return x.tolist()
        return -x

    report = calque.explain(f, torch.ones(3))
    jit = report.entry_points[0]
    assert jit.captured is False
    assert f"{__file__}:{f.__code__.co_firstlineno + 1}" in jit.reason
    assert "in place of the `if`" in jit.reason
    assert report.flops is None
    assert report.notes


def test_a_training_step_is_explained_without_running():
    model = nn.Linear(3, 1).to("jax")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    weight = model.weight.tolist()
    report = calque.explain(step, torch.ones(4, 3, device="jax"))
    assert report.entry_points[0].captured
    assert report.written
    assert model.weight.tolist() == weight
    assert model.weight.grad is None


def test_host_reads_of_a_module_are_found():
    class Clipped(nn.Module):
        def forward(self, x):
            return x / max(x.max().item(), 1.0)

    report = calque.explain(Clipped(), torch.ones(3))
    assert len(report.host_reads) == 1
    assert __file__ in report.host_reads[0]
    assert report.entry_points[0].captured is False


@pytest.mark.filterwarnings("ignore::calque.FallbackWarning")
def test_operators_of_the_cpu_are_told():
    report = calque.explain(lambda x: torch.linalg.ldl_factor(x)[0], torch.eye(3), compare=False)
    assert [one.served for one in report.operators if "ldl" in one.name] == ["fallback"]
    assert "by the CPU" in str(report)


def test_inputs_of_the_cpu_are_taken_to_the_models_device():
    report = calque.explain(nn.Linear(3, 2).to("jax"), torch.ones(4, 3))
    assert [one.captured for one in report.entry_points] == [True] * 3
    assert report.differences == []
    assert report.notes == []


def test_random_numbers_are_no_disagreement():
    report = calque.explain(nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5)), torch.ones(2, 3))
    assert report.differences == []
    assert any("eval mode" in note for note in report.notes)


def test_a_disagreement_is_told():
    class Foretelling(nn.Module):
        def forward(self, x):
            return x * (2 if x.device.type == "jax" else 3)

    report = calque.explain(Foretelling(), torch.ones(3))
    assert report.differences
    assert "CPU and device disagree" in str(report)


def test_a_function_is_compared_by_its_traces():
    report = calque.explain(lambda x: torch.eye(3, device=x.device) @ x.exp(), torch.ones(3))
    assert report.differences == []


def test_of_a_jitted_function_the_traces_are_told():
    double = calque.jit(lambda x: x * 2)
    double(torch.ones(2, device="jax"))
    double(torch.ones(3, device="jax"))
    report = calque.explain(double, torch.ones(2, device="jax"))
    assert len(report.traces) == 2
    assert "shape (3,)" in report.traces[1]


def test_what_is_no_program_is_an_error():
    with pytest.raises(TypeError, match=r"calque.explain\(model, x\)"):
        calque.explain(3)


class Branching(nn.Module):
    def forward(self, x):
        h = x * 2
        return h + 1 if h.sum() > 0 else h


def test_where_a_compiled_graph_ends_is_told():
    (one,) = [
        d for d in calque.explain(Branching(), torch.ones(2)).entry_points if "compile" in d.name
    ]
    assert one.captured and one.reason.startswith("2 graphs, the first ends at ")
    line = Branching.forward.__code__.co_firstlineno + 2
    assert f"test_explain.py:{line}: a branch on a tensor's value" in one.reason
