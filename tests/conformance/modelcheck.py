"""Run the models of `models.py` on the device and on the CPU, and compare.

    python -m tests.conformance.modelcheck 'timm/*' --mode forward --mode train

Each model is run eagerly and under `calque.jit`: a forward pass in eval mode, and training steps
with AdamW. Dropout is off, because the devices draw different numbers.
"""

import argparse
import contextlib
import copy
import fnmatch
import json
import re
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

import calque
from calque.device.kernels.fallback import SERVED
from tests.conformance.known_models import reason
from tests.conformance.models import MODELS, Model

MODES = ("forward", "forward-jit", "forward-compile", "train", "train-jit", "train-compile")
TOLERANCE = 2e-4
_PATH = re.compile(r"/\S*/")


class Disagreement(AssertionError):
    """The device computed something else than the CPU."""


class NotCompiled(AssertionError):
    """`torch.compile` left the whole model to Python."""


class TorchFails(AssertionError):
    """`torch.compile` fails on the CPU, too, with a backend that compiles nothing."""


class Retraced(AssertionError):
    """Calls that are alike were not served by one program."""


def close(
    name: str, got: Any, want: Any, tolerance: float = TOLERANCE, least: float = 1e-6
) -> None:
    """Raise Disagreement unless a tensor is the CPU's, relative to its largest element."""
    got = got.detach().to("cpu")
    if got.shape != want.shape or got.dtype != want.dtype:
        raise Disagreement(
            f"{name}: {got.dtype}{list(got.shape)} for {want.dtype}{list(want.shape)}"
        )
    if not want.dtype.is_floating_point and not want.dtype.is_complex:
        if not torch.equal(got, want):
            raise Disagreement(f"{name}: {(got != want).sum()} of {want.numel()} integers differ")
        return
    if not want.numel():
        return
    same = (got == want) | (got.isnan() & want.isnan())
    error = torch.where(same, 0, (got - want).abs()).max().item()
    finite = want[want.isfinite() & (want.abs() < 1e30)]
    scale = finite.abs().max().item() if finite.numel() else 0.0
    if not error <= tolerance * scale + least:
        raise Disagreement(f"{name}: off by {error:.2e} where the largest is {scale:.2e}")


def without_dropout(model: nn.Module) -> nn.Module:
    """The model with every dropout rate 0, also those that its code reads from a config."""
    configs = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    for owner in (*model.modules(), *configs.values()):
        for name, value in list(vars(owner).items()):
            if "drop" in name and isinstance(value, float):
                setattr(owner, name, 0.0)
        of_torchvision = type(owner).__name__ == "StochasticDepth"
        if isinstance(owner, nn.modules.dropout._DropoutNd) or of_torchvision:
            owner.p = 0.0
    return model


def tensors_of(result: Any) -> dict[str, torch.Tensor]:
    """The tensors of a model's result, by where they are in it."""
    if hasattr(result, "to_tuple"):
        result = dict(result)
    leaves, _ = pytree.tree_flatten_with_path(result)
    return {pytree.keystr(p): x for p, x in leaves if isinstance(x, torch.Tensor)}


def loss_of(result: Any) -> torch.Tensor:
    """The model's own loss, or one of its floating point results."""
    loss = getattr(result, "loss", None)
    if loss is not None:
        return loss
    floats = [t for t in tensors_of(result).values() if t.dtype.is_floating_point]
    return sum((t.float() - 1).square().mean() for t in floats)


def moved(inputs: dict[str, Any]) -> dict[str, Any]:
    return {k: v.to("jax") if isinstance(v, torch.Tensor) else v for k, v in inputs.items()}


def state_of(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """What training changes: gradients, parameters, buffers."""
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            yield f"{name}.grad", parameter.grad
    yield from model.named_parameters()
    yield from model.named_buffers()


def forward(model: nn.Module, inputs: dict[str, Any], way: str) -> None:
    """A pass in eval mode, three times where it is compiled."""
    reference = model.eval()
    device = copy.deepcopy(reference).to("jax")
    for module in (*reference.modules(), *device.modules()) if way == "jit" else ():
        # A cache is an object with tensors from the trace, so such a call is traced each time.
        if getattr(getattr(module, "config", None), "use_cache", False):
            module.config.use_cache = False
    run = wrapped(device, way)
    with torch.no_grad():
        want = tensors_of(reference(**inputs))
        placed = moved(inputs)
        for _ in range(3 if way else 1):
            got = tensors_of(run(**placed))
            assert got.keys() == want.keys(), (got.keys(), want.keys())
            for name, tensor in want.items():
                close(name, got[name], tensor)
    if way == "jit":
        check_settled(run)
        check_repeating(run)


def train(model: nn.Module, inputs: dict[str, Any], way: str, steps: int = 2) -> None:
    """Training steps with AdamW: under jit the whole step, under torch.compile the model."""
    reference = without_dropout(model.train())
    device = copy.deepcopy(reference).to("jax")
    placed = moved(inputs)
    cpu_step = training_step(reference, reference)
    step = training_step(device, wrapped(device, way) if way == "compile" else device)
    if way == "jit":
        step = calque.jit(step)
    for i in range(steps):
        want, got = cpu_step(inputs), step(placed)
        close(f"loss {i}", got, want)
        state = dict(state_of(device))
        expected = dict(state_of(reference))
        if way == "compile":  # between graphs, torch.compile returns zeros where eager returns None
            for name in [n for n in state.keys() - expected.keys() if not state[n].any()]:
                del state[name]
        missing = state.keys() ^ expected.keys()
        if missing:
            raise Disagreement(f"only on one device: {sorted(missing)[:5]}")
        largest = max(
            t.abs().max().item() for n, t in expected.items() if n.endswith(".grad") and t.numel()
        )
        for name, tensor in expected.items():
            if name.endswith(".grad"):
                close_gradient(f"step {i}: {name}", state[name], tensor, largest)
            else:
                close(f"step {i}: {name}", state[name], tensor, 1e-3, 1e-5)
    if way == "jit":
        step(placed)
        check_settled(step)


def wrapped(model: nn.Module, way: str) -> Any:
    """The model as it is, under jit, or compiled."""
    if way == "jit":
        return calque.jit(model)
    if way == "compile":
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        return torch.compile(model, backend="calque")
    return model


def close_gradient(name: str, got: torch.Tensor, want: torch.Tensor, largest: float) -> None:
    """As `close`; a gradient that is zero but for rounding is measured by the others."""
    if not want.numel():
        return
    scale = max(want.abs().max().item(), 1e-4 * largest)
    got = got.detach().to("cpu")
    error = (got - want).abs().max().item()
    if not error <= 2e-3 * scale + 1e-7:
        raise Disagreement(f"{name}: off by {error:.2e} where the largest is {scale:.2e}")


def training_step(model: nn.Module, run: Any) -> Any:
    """One step as tutorials write it; the gradients stay for inspection."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-2)

    def step(inputs: dict[str, Any]) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(run(**inputs))
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def check_settled(jitted: Any) -> None:
    """Raise Retraced where calls that are alike go on to be traced, or run eagerly.

    One trace more is the model's own doing: gradients that are there in the second call, which
    need no other program, or something that it keeps from the first.
    """
    for program in jitted.explain().programs:
        if "eager" in program:
            raise Retraced(f"runs eagerly: {program['eager']}")
    if len(jitted.history) > 2 or (jitted.compilations > 1 and "gradient" in jitted.history[1]):
        raise Retraced(f"compiled {jitted.compilations} times: {jitted.history}")


def check_repeating(jitted: Any) -> None:
    """Raise Retraced where values that are the same in each call were not served by one program.

    In training they may be others: the parameters are.
    """
    missed = sum(program["misses"] for program in jitted.explain().programs)
    if missed:
        raise Retraced(f"assumed other values in {missed} calls: {jitted.history}")


def check(name: str, mode: str) -> None:
    """Run one model in one mode.

    Raises:
        Disagreement: values, gradients or the number of traces are not as they should be.
        TorchFails: PyTorch itself cannot compile the model.
    """
    kind, _, way = mode.partition("-")
    torch._dynamo.config.allow_rnn = True  # otherwise recurrent layers run in Python
    try:
        _check(name, kind, way)
    except Exception as error:
        if way == "compile" and not isinstance(error, Disagreement):
            _compile_on_cpu(name, kind)
        raise


def _check(name: str, kind: str, way: str) -> None:
    run = forward if kind == "forward" else train
    try:
        run(*made(name), way)
        if way == "compile" and not compiled_graphs():
            raise NotCompiled("no graph was compiled")
    except Disagreement:
        # Is this rounding, which normalization over few numbers amplifies, or an error?
        model, inputs = made(name)
        double = {k: v.double() if is_floating(v) else v for k, v in inputs.items()}
        run(model.double(), double, way)


def _compile_on_cpu(name: str, kind: str) -> None:
    torch._dynamo.reset()
    model, inputs = made(name)
    run = torch.compile(model.train(kind == "train"), backend="eager")
    try:
        loss_of(run(**inputs))
    except Exception as error:
        raise TorchFails(f"also on the CPU with backend='eager': {error}") from error


def compiled_graphs() -> int:
    """How many graphs dynamo has made since it was reset."""
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def graph_breaks() -> int:
    """How often dynamo has left a piece of the model to Python since it was reset."""
    return sum(torch._dynamo.utils.counters["graph_break"].values())


def made(name: str) -> Model:
    torch.manual_seed(0)
    return MODELS[name]()


def is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def known_of(path: Path) -> dict[str, dict[str, str]]:
    """What a file of findings says, by model and mode."""
    return json.loads(path.read_text()) if path.exists() else {}


def add_finding(path: Path, name: str, mode: str, verdict: str) -> None:
    """Note in a file (`docs/models.json`) what was found of one model in one mode."""
    known = known_of(path)
    if verdict == "ok" and mode.endswith("-compile") and (breaks := graph_breaks()):
        verdict = f"ok, in pieces ({breaks} graph break{'s' * (breaks > 1)})"
    known.setdefault(name, {})[mode] = verdict
    rows = [f"{json.dumps(n)}: {json.dumps(known[n])}" for n in MODELS if n in known]
    path.write_text("{\n" + ",\n".join(rows) + "\n}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("patterns", nargs="*", default=["*"])
    parser.add_argument("--missing", action="store_true", help="only what is not known to be right")
    parser.add_argument("--mode", action="append", choices=MODES)
    parser.add_argument("--write", type=Path, help="a file of findings to bring up to date")
    parser.add_argument("--trace", action="store_true", help="print tracebacks")
    options = parser.parse_args()
    names = [n for n in MODELS if any(fnmatch.fnmatch(n, p) for p in options.patterns)]
    torch.set_num_threads(1)
    for mode in options.mode or MODES:
        good = 0
        for name in names:
            if options.missing and known_of(options.write).get(name, {}).get(mode, "").startswith(
                "ok"
            ):
                continue
            SERVED.clear()
            started = time.perf_counter()
            try:
                with _quiet():
                    check(name, mode)
                good += 1
                verdict = "ok"
            except Exception as error:
                if options.trace:
                    traceback.print_exc()
                lines = str(error).strip().splitlines() or [""]
                verdict = f"FAIL {type(error).__name__}: {' | '.join(lines)[:600]}"
            if options.write is not None:
                why = reason(name, mode)
                known = f"FAIL {why}" if why and verdict.startswith("FAIL") else verdict
                add_finding(options.write, name, mode, _PATH.sub("", known)[:300])
            seconds = time.perf_counter() - started
            served = f"  CPU {dict(SERVED)}" if SERVED else ""
            if mode.endswith("-compile"):
                served += f"  {compiled_graphs()} graphs, {graph_breaks()} breaks"
            print(f"{mode:12} {name:40} {seconds:5.1f}s {verdict}{served}", flush=True)
        print(f"{mode}: {good} of {len(names)}", flush=True)


if __name__ == "__main__":
    main()
