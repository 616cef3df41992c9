"""`import calque` loads what the device needs; everything else comes with its first use."""

import importlib
from pathlib import Path

import pytest

import calque
from tests import new_process

LATER = ("convert", "federated", "graph", "interop", "sharding", "view")


def test_importing_loads_the_device_and_no_way_of_tracing() -> None:
    program = f"""
import sys
import calque
loaded = [name for name in sys.modules if name.startswith("calque.")]
assert len(loaded) <= 235, len(loaded)
assert not {set(LATER)} & {{name.split(".")[1] for name in loaded}}
wanted = ("calque.state", "calque.tracing", "calque.jitting", "calque.dynamo", "calque.program")
late = [name for name in loaded if name.startswith(wanted)]
assert len(late) <= 16, late
assert not any(name.startswith("jax._src.pallas") for name in sys.modules)
"""
    new_process.check(program)


FIRST = {
    "jit": "print(calque.jit(lambda x: x * 2)(torch.ones(2, device='jax')).tolist())",
    "jit in threads": """
import threading
def run():
    done.append(calque.jit(lambda x: x * 2)(torch.ones(2, device="jax")).tolist())
done = []
threads = [threading.Thread(target=run) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert len(done) == 4
print(done[0])
""",
    "all names in threads": """
import threading
def find(name):
    try:
        getattr(calque, name)
    except BaseException as error:
        failed.append((name, error))
failed = []
threads = [threading.Thread(target=find, args=(name,)) for name in calque.__all__]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert not failed, failed
print([2.0, 2.0])
""",
    "names in a trace": """
@calque.jit
def step(x):
    calque.interop, calque.record, calque.view
    return x * 2
step(torch.ones(2, device="jax"))
print(step(torch.ones(2, device="jax")).tolist())
assert len(step.history) == 1, step.history
""",
    "a choice of a traced module": """
import pickle
module = calque.trace(lambda x: x * 2 if x.sum() > 0 else x - 1, torch.ones(2))
assert module(-torch.ones(2, device="jax")).tolist() == [-2.0, -2.0]
print(calque.jit(module)(torch.ones(2, device="jax")).tolist())
""",
    "cond in a jitted function": """
@calque.jit
def step(x):
    return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))
with torch.inference_mode():
    assert step(torch.ones(2, device="jax")).tolist() == [2.0, 2.0]
print(step(torch.ones(2, device="jax")).tolist())
""",
    "cond in a function of arrays": """
import jax
def function(x):
    return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))
run, state = calque.functional(function)
print(jax.jit(lambda x: run(state, x))(jax.numpy.ones(2)).tolist())
""",
    "a rule": """
@torch.library.custom_op("first_use::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x + x
calque.op("first_use::twice")(lambda x: 2 * x)
print(twice(torch.ones(2, device="jax")).tolist())
""",
    "torch.compile": """
print(torch.compile(lambda x: x * 2, backend="calque")(torch.ones(2, device="jax")).tolist())
""",
    "the default of torch.compile": """
print(torch.compile(lambda x: x * 2)(torch.ones(2, device="jax")).tolist())
""",
    "loading": """
import io
file = io.BytesIO()
torch.save(torch.full((2,), 2.0), file)
file.seek(0)
print(torch.load(file, map_location="jax").tolist())
""",
    "a gradient": """
x = torch.ones(2, requires_grad=True)
(2 * x.to("jax")).sum().backward()
print(x.grad.tolist())
""",
}


@pytest.mark.parametrize("use", FIRST)
def test_what_is_used_first_works(use: str) -> None:
    done = new_process.run("import calque, torch\n" + FIRST[use])
    assert (done.returncode, done.stdout.strip()) == (0, "[2.0, 2.0]"), done.stderr


def test_former_names_of_the_tracer_are_imported_when_they_are_used() -> None:
    program = """
import calque.trace.fx
from calque.trace import Tracer, lower
from calque.trace.fx.proxy import Proxy
assert callable(calque.trace) and calque.trace.Tracer is Tracer
import calque.tracing.lowering.writes
assert calque.trace.fx is calque.tracing.fx and Proxy is calque.tracing.fx.Proxy
assert lower is calque.lower is calque.tracing.lower
"""
    new_process.check(program)


@pytest.mark.parametrize("name", ["nothing", "__nothing__"])
def test_an_unknown_name_is_an_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'calque' has no attribute '{name}'"):
        getattr(calque, name)


def test_the_packages_of_calque_are_attributes_of_it() -> None:
    folders = {path.parent.name for path in Path(calque.__file__).parent.glob("*/__init__.py")}
    for name in folders - {"launching"}:
        assert getattr(calque, name) is importlib.import_module(f"calque.{name}")
        assert name in dir(calque)
