"""The benchmarks compare like with like: every model's JAX twin computes the same losses."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch._dynamo

from benchmarks import accelerator, decoding, federated, growth
from benchmarks.compile import steps
from benchmarks.models import CASES, COMPILED, GPT, Case
from benchmarks.train_step import agree, candidates


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_losses_agree(case: Case) -> None:
    agree(candidates(case, "AdamW", inductor=False))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", accelerator.DTYPES)
@pytest.mark.parametrize("case", ["small ResNet", "small ViT", "small GPT", "small BERT"])
def test_losses_agree_on_accelerators(case: str, dtype: str) -> None:
    try:
        ours, _ = accelerator.of_torch(case, dtype, accelerator.OURS)
    finally:
        torch.set_float32_matmul_precision("highest")
    theirs, _ = accelerator.of_jax(case, dtype)
    losses = {"calque.jit": ours, "JAX": theirs}
    reports = {way: {"losses": [float(step()) for _ in range(4)]} for way, step in losses.items()}
    accelerator.check(reports, dtype)


@pytest.mark.conformance
def test_steps_that_grow_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "growth.svg"
    growth.main(["--quick", "--rows", "parameters", "--picture", str(picture)])
    assert picture.read_text().count("<svg") == 1
    assert "| 30 " in capsys.readouterr().out


@pytest.mark.conformance
def test_losses_agree_where_steps_are_compiled() -> None:
    """Of one layer; the conformance suite has the models that are measured."""
    case = replace(COMPILED[2], model=lambda: GPT(depth=1))
    torch._dynamo.reset()
    agree(steps(case, inductor=False))


def test_decoding_gives_the_tokens_of_torch() -> None:
    torch._dynamo.reset()
    compiled = decoding.decoder("jax", lambda model: torch.compile(model, backend="calque"))
    assert compiled() == decoding.decoder("cpu", lambda model: model)()


def test_rounds_of_fedavg_agree() -> None:
    made = federated.candidates(3, chunks=(1, 2))
    expected = made.pop("scan")()
    for step in made.values():
        np.testing.assert_allclose(step(), expected, rtol=1e-3, atol=1e-5)


def test_rounds_of_clients_of_different_sizes_agree() -> None:
    expected, *found = [step() for step in federated.of_different_sizes(10).values()]
    for one in found:
        np.testing.assert_allclose(one, expected, rtol=1e-3, atol=1e-5)
