"""The examples run."""

import importlib.util
import os
import runpy
import sys
from pathlib import Path

import pytest

from tests import new_process
from tests.conformance.torchvision_stub import torchvision_stubbed

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("digits", ["--epochs", "1"], "calque.jit"),
        ("federated_digits", ["--rounds", "2"], "SCAFFOLD"),
    ],
)
def test_an_example_draws_its_curves(
    name: str,
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    script = str(ROOT / f"examples/{name}.py")
    monkeypatch.setattr(sys, "argv", [script, *arguments, "--output", str(tmp_path)])
    runpy.run_path(script, run_name="__main__")
    assert said in capsys.readouterr().out
    assert (tmp_path / f"{name}.png").stat().st_size > 0


# These packages import torchvision if it is installed, even if its own operators are missing.
RUN = """
import runpy, sys
from tests import new_process
from tests.conformance.torchvision_stub import make_importable
make_importable()
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "packages", "environment"),
    [
        ("generate", ["transformers"], {}),
        pytest.param(
            *("hf_trainer", ["transformers", "accelerate"], {"ACCELERATE_TORCH_DEVICE": "jax"}),
            marks=pytest.mark.conformance,
        ),
        ("accelerate_loop", ["accelerate"], {"ACCELERATE_TORCH_DEVICE": "jax"}),
        ("lightning_fit", ["lightning"], {}),
    ],
)
def test_a_program_of_another_library(
    name: str, packages: list[str], environment: dict[str, str]
) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}")
    result = new_process.run(
        RUN,
        str(ROOT / f"examples/{name}.py"),
        cwd=ROOT,
        env={**os.environ, "HF_HUB_OFFLINE": "1", **environment},
        timeout=580,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    assert "CPU" in result.stdout or "on jax" in result.stdout


SMALL = {
    "actor_critic": (["--steps", "3", "--rollout", "2"], []),
    "dcgan": (["--steps", "3"], ["sklearn"]),
    "diffusion": (["--steps", "6"], ["sklearn"]),
    "gpt": (["--steps", "10"], []),
    "graph_network": (["--steps", "20"], []),
    "lora": (["--steps", "8"], ["transformers"]),
    "optax_step": (["--steps", "10"], ["optax", "sklearn"]),
    "own_ir": ([], []),
    "sharded_gpt": (["--steps", "3"], []),
    "timm_model": (["--steps", "8"], ["timm", "sklearn"]),
    "vae": (["--steps", "10"], ["sklearn"]),
}
"""Examples that run in this process, with arguments that make them short, and what they need."""


@pytest.mark.parametrize("name", SMALL)
def test_an_example_computes_what_it_says(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    arguments, packages = SMALL[name]
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}")
    script = ROOT / f"examples/{name}.py"
    monkeypatch.setattr(sys, "argv", [str(script), *arguments])
    monkeypatch.setattr(sys, "path", [str(script.parent), *sys.path])
    with torchvision_stubbed():
        runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out
    sys.modules.pop("gpt", None)
