"""While a function is traced, Python tells audit hooks of much that calque does."""

from tests import new_process


def test_few_ids_are_asked_for_an_operator() -> None:
    """Each is an event for the audit hook, which takes longer than asking."""
    program = """
import sys
from array import array
import torch
import calque

told = array("q", [False, 0])

def hook(event, arguments):
    if told[0] and event == "builtins.id":
        told[1] += 1

sys.addaudithook(hook)

def ids(operators):
    def function(x):
        for _ in range(operators):
            x = x.t()
        return x + 1
    jitted = calque.jit(function)
    told[:] = array("q", [True, 0])
    jitted.lower(torch.ones(2, 2, device="jax"))
    told[0] = False
    return told[1]

ids(10)
each = (ids(300) - ids(100)) / 200
assert each <= 8, each
"""
    new_process.check(program)


def test_calls_of_the_engine_that_tell_something_are_seen_after_others() -> None:
    """A hash of a tensor is one: its class's file is never left out."""
    program = """
import torch
import calque

weight = torch.ones(2, device="jax")
table = {weight: 2.0}

@calque.jit
def step(x):
    x = x.reshape(2)
    return x * table[weight]

for value in (2.0, 3.0):
    table[weight] = value
    assert step(torch.ones(2, device="jax")).tolist() == [value, value]
optimizer = None

@calque.jit
def second(x):
    torch.nn.functional.layer_norm(x, (2,))
    made = torch.optim.SGD([torch.nn.Parameter(torch.ones(2, device="jax"))], 0.5)
    (parameter,) = made.param_groups[0]["params"]
    (parameter * x).sum().backward()
    made.step()
    return parameter.detach() * 1

for _ in range(3):
    assert second(torch.ones(2, device="jax")).tolist() == [0.5, 0.5]
"""
    new_process.check(program)


def test_the_audit_hook_is_silent_while_python_exits() -> None:
    """Python then first clears the names of modules that begin with an underscore."""
    program = """
import torch
import calque
from calque.state import running

calque.jit(lambda x: x + 1)(torch.ones(2, device="jax"))
for name in [name for name in vars(running) if name.startswith("_") and name[1] != "_"]:
    setattr(running, name, None)
id(running)
open("/dev/null").close()
"""
    done = new_process.run(program)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
