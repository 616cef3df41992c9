"""Without `import calque`, a checkpoint of the device names the import."""

import subprocess
import sys
import tomllib
from pathlib import Path

import torch

import calque  # noqa: F401

ROOT = Path(__file__).parents[1]


def _without_calque(program: str) -> str:
    # Runs the entry point like PyTorch, even if it is not installed.
    program = f"import sys, torch, calque_hint; calque_hint.register()\n{program}"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=ROOT / "src",
        env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_slot_for_devices_is_left_to_others_and_loading_a_checkpoint_names_the_import(
    tmp_path: Path,
) -> None:
    torch.save({"w": torch.arange(3.0, device="jax")}, tmp_path / "w.pt")
    found = _without_calque(f"""
print(torch._C._get_privateuse1_backend_name())
for weights_only in True, False:
    try:
        torch.load({str(tmp_path / "w.pt")!r}, weights_only=weights_only)
    except RuntimeError as error:
        print(error)
print(torch.load({str(tmp_path / "w.pt")!r}, map_location="cpu")["w"].tolist())
assert "calque" not in sys.modules and "jax" not in sys.modules
import calque
print(torch.load({str(tmp_path / "w.pt")!r})["w"].device)
""").splitlines()
    assert found.pop(0) == "privateuseone"
    said = "the file has tensors on the device 'jax:0', which `import calque` registers"
    assert [line.startswith(said) for line in found[:2]] == [True, True], found
    assert found[2:] == ["[0.0, 1.0, 2.0]", "jax:0"]


def test_torch_finds_the_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["torch.backends"] == {"calque": "calque_hint:register"}
