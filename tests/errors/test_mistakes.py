"""Mistakes that newcomers make: each is answered in at most 15 lines, with the line and a remedy.

Each program is a script, and what Python would print of its exception is what is looked at.
"""

import os
import runpy
import sys

import pytest
import torch

import calque
from tests import new_process

_START = """
import torch, calque
from torch import nn
torch.set_num_threads(1)
x = torch.ones(3, device="jax")
model = nn.Linear(3, 1).to("jax")
"""

# name: the program, and text in the error
MISTAKES = {
    "print a value": (
        """
@calque.jit
def f(x):
    print(f"loss {x.sum():.3f}")  # here
    return x
f(x)
""",
        "print or log it outside",
    ),
    "item in a loss log": (
        """
losses = []
@calque.jit
def step(x):
    loss = model(x).sum()
    losses.append(loss.item())  # here
    return loss
step(x)
""",
        "Return it from the function",
    ),
    "to numpy": (
        """
@calque.jit
def f(x):
    return x.cpu().numpy()  # here
f(x)
""",
        "call .cpu() there, on what the call gives",
    ),
    "numpy without cpu": (
        """
@calque.jit
def f(x):
    return x.numpy()  # here
f(x)
""",
        "inside calque.jit it has no value: return it",
    ),
    "an if on a value": (
        """
@calque.jit
def f(x):
    if x.sum() > 0:  # here
        return x
    return -x
f(x)
""",
        "torch.where(condition, a, b)",
    ),
    "a while on a value": (
        """
@calque.jit
def f(x):
    while x.sum() < 100:  # here
        x = x * 2
    return x
f(x)
""",
        "x, = torch.while_loop(lambda x: x.sum() < 100, body, (x,))",
    ),
    "a mask": (
        """
@calque.jit
def f(x):
    return x[x > 0]  # here
f(x)
""",
        "torch.where(mask, x, 0)",
    ),
    "nonzero": (
        """
@calque.jit
def f(x):
    return x.nonzero()  # here
f(x)
""",
        "Keep the shape",
    ),
    "LBFGS": (
        """
optimizer = torch.optim.LBFGS(model.parameters())
@calque.jit
def step(x):
    def closure():
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        return loss
    optimizer.step(closure)  # here
step(x)
""",
        "Run LBFGS eagerly",
    ),
    "a model on the CPU with Adam": (
        """
model = nn.Linear(3, 1)
optimizer = torch.optim.Adam(model.parameters())
@calque.jit
def step(x):
    model(x).sum().backward()
    optimizer.step()  # here
step(torch.ones(3))
""",
        'model.to("jax")',
    ),
    "a model on the CPU with an input on the device": (
        """
model = nn.Linear(3, 1)
model(x)  # here
""",
        'model.to("jax")',
    ),
    "a wrong shape in a layer": (
        """
net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(5, 2)).to("jax")
net(x)  # here
""",
        "in layer 2 of Sequential: Linear(in_features=5",
    ),
    "a wrong shape in a jitted model": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.Linear(5, 2))
    def forward(self, x):
        return self.body(x)  # here
calque.jit(Net().to("jax"))(x)
""",
        "in layer body.1 of Net: Linear(in_features=5",
    ),
    "shapes that do not broadcast": (
        """
x + torch.ones(4, device="jax")  # here
""",
        "The size of tensor a (3) must match the size of tensor b (4)",
    ),
    "a second device": (
        """
torch.ones(3, device="jax:1")  # here
""",
        "only index 0",
    ),
    "a number for a tensor": (
        """
calque.to_jax(3.0)  # here
""",
        "jax.numpy.asarray",
    ),
    "jit of no function": (
        """
calque.jit(3)  # here
""",
        "write `calque.jit(fn)`",
    ),
    "a module of TorchScript": (
        """
import warnings
warnings.simplefilter("ignore")
scripted = torch.jit.script(nn.Linear(3, 1)).to("jax")
@calque.jit
def f(x):
    return scripted(x)
f(x)  # here
""",
        "Jit the original module",
    ),
    "a wrong option": (
        """
calque.jit(model, max_programs="x")  # here
""",
        "max_programs=) must be a number of programs, not str 'x'",
    ),
    "a path for bytes": (
        """
calque.load_exported("model.bin")  # here
""",
        "read_bytes()",
    ),
    "bytes that are no program": (
        """
calque.load_exported(b"junk")  # here
""",
        "export the program again",
    ),
    "a wrong shape for an exported program": (
        """
program = calque.export(nn.Linear(3, 1), (torch.ones(2, 3),))
program(torch.ones(2, 4))  # here
""",
        "dimension 1 of argument 0 (input) is 4, but the program takes 3",
    ),
    "a rule that fails": (
        """
library = torch.library.Library("mine", "DEF")
library.define("twice(Tensor x) -> Tensor")
@calque.op("mine::twice")
def twice(x):
    return x.nosuch()
torch.ops.mine.twice(x)  # here
""",
        "has no attribute nosuch",
    ),
    "inductor's options on the device": (
        """
torch.compile(model, mode="max-autotune")(x)  # here
""",
        'backend="calque"',
    ),
    "a name of a device that is another's": (
        """
torch.ones(3, device="tpu")  # here
""",
        'The device of calque is "jax"',
    ),
    "a device of torch_xla": (
        """
torch.ones(3, device="xla")  # here
""",
        'The device of calque is "jax"',
    ),
    "a device of JAX": (
        """
torch.ones(3, device="jax:cpu")  # here
""",
        'The device of calque is "jax"',
    ),
    "cuda": (
        """
model.cuda()  # here
""",
        "calque run script.py",
    ),
    "a backend of that name": (
        """
torch.compile(model, backend="jax")(x)  # here
""",
        'backend="calque"',
    ),
    "a backend of torch_xla": (
        """
torch.compile(model, backend="openxla")(x)  # here
""",
        'backend="calque"',
    ),
    "a tensor for a function of JAX": (
        """
import jax.numpy as jnp
jnp.sin(x)  # here
""",
        "calque.to_jax(tensor)",
    ),
    "jax.jit of PyTorch code": (
        """
import jax
jax.jit(torch.sin)(x)  # here
""",
        "apply, params = calque.functional(fn)",
    ),
    "jax.grad of PyTorch code": (
        """
import jax
jax.grad(lambda x: (x * x).sum())(x)  # here
""",
        "apply, params = calque.functional(fn)",
    ),
    "jax.jit of a jitted function": (
        """
import jax
f = calque.jit(lambda x: x * 2)
jax.jit(f)(calque.to_jax(x))  # here
""",
        "apply, params = calque.functional(fn)",
    ),
    "a jitted function within jax.jit": (
        """
import jax
f = calque.jit(lambda x: x * 2)
g = lambda x: calque.to_jax(f(calque.to_torch(x)))
jax.jit(g)(calque.to_jax(x))  # here
""",
        "apply, params = calque.functional(fn)",
    ),
    "an array for a tensor": (
        """
torch.sin(calque.to_jax(x))  # here
""",
        "calque.to_torch(array)",
    ),
    "an array and a tensor": (
        """
x + calque.to_jax(x)  # here
""",
        "calque.to_torch(array)",
    ),
    "from_jax of a PyTorch function": (
        """
f = calque.from_jax(torch.sin)
f(x)  # here
""",
        "a PyTorch function by calque.functional(fn)",
    ),
    "an option of jax.jit": (
        """
calque.jit(model, static_argnums=1)  # here
""",
        "every argument that is no tensor is static",
    ),
    "an option that nobody has": (
        """
calque.jit(model, check=True)  # here
""",
        "it has checks, specialize",
    ),
    "a tensor as the key of a dict": (
        """
table = {3.0: "three"}
@calque.jit
def f(x):
    return table[x.sum()]  # here
f(x)
""",
        "table[i.reshape(1)]",
    ),
    "a builtin for numbers": (
        """
@calque.jit
def f(x):
    return max(x.sum(), 0)  # here
f(x)
""",
        "torch.maximum(a, b)",
    ),
    "a size from a value": (
        """
@calque.jit
def f(x):
    return x.new_zeros(x.sum().long())  # here
f(x)
""",
        "pass the size as a Python number",
    ),
    "a loader in the jitted function": (
        """
loader = torch.utils.data.DataLoader(torch.ones(4, 3))
@calque.jit
def epoch():
    for batch in loader:  # here
        model(batch.to("jax"))
epoch()
""",
        "Iterate over the DataLoader outside",
    ),
    "a default device and a loader that shuffles": (
        """
torch.set_default_device("jax")
try:
    for batch in torch.utils.data.DataLoader(torch.ones(4, 3), shuffle=True):  # here
        pass
finally:
    torch.set_default_device(None)
""",
        "with torch.device('cpu'):",
    ),
    "an option that show lacks": (
        """
graph = calque.trace(nn.Linear(3, 1), torch.ones(3))
calque.show(graph, html=True)  # here
""",
        'calque.show(graph).save("graph.html")',
    ),
}


def _answer(program, **environment):
    done = new_process.run(program, env=os.environ | environment, cwd=program.parent)
    assert done.returncode == 1, done.stdout
    return done.stderr.splitlines()


def _printed(path, capsys):
    """What Python prints where a script ends with an exception."""
    try:
        runpy.run_path(str(path), run_name="__main__")
    except Exception as error:
        step = error.__traceback__
        while step is not None and step.tb_frame.f_code.co_filename != str(path):
            step = step.tb_next
        sys.excepthook(type(error), error.with_traceback(step), step)
        return capsys.readouterr().err.splitlines()
    raise AssertionError("it went well")


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_answered_in_a_few_lines(name, tmp_path, capsys):
    program, remedy = MISTAKES[name]
    path = tmp_path / "mistake.py"
    path.write_text(_START + program)
    said = _printed(path, capsys)
    text = "\n".join(said)
    assert len(said) <= 15, text
    line = 1 + (_START + program).splitlines().index(
        next(row for row in program.splitlines() if row.endswith("# here"))
    )
    assert f'mistake.py", line {line}' in text, text
    assert remedy in text, text
    files = [row for row in said if row.lstrip().startswith("File ")]
    assert all("mistake.py" in row for row in files), text


def test_a_script_prints_the_same(tmp_path):
    program = tmp_path / "mistake.py"
    program.write_text(_START + MISTAKES["a wrong shape in a layer"][0])
    said = _answer(program)
    assert len(said) <= 6, said
    assert "in layer 2 of Sequential" in said[-1]


def test_everything_is_shown_on_request(tmp_path):
    program = tmp_path / "mistake.py"
    program.write_text(_START + MISTAKES["a wrong shape in a layer"][0])
    said = _answer(program, CALQUE_TRACEBACK="full")
    assert len(said) > 20
    assert any("calque" in row and "File" in row for row in said)


def test_errors_that_calque_has_no_part_in_are_printed_as_ever(tmp_path):
    program = tmp_path / "mistake.py"
    program.write_text("import calque, json\njson.loads('{')\n")
    assert any("json/decoder.py" in row for row in _answer(program))


def test_a_key_that_a_trace_has_left_can_be_shown():
    @calque.jit
    def look_up(x):
        return {}[x.sum()]

    with pytest.raises(KeyError) as error:
        look_up(torch.ones(3, device="jax"))
    assert "a traced tensor of shape () and dtype torch.float32" in str(error.value)


WORKER = """
import torch, calque
torch.ones(1, device="jax")

class Rows(torch.utils.data.Dataset):
    def __len__(self): return 2
    def __getitem__(self, i): return torch.full((3,), float(i), device="jax")  # here

for batch in torch.utils.data.DataLoader(Rows(), num_workers=1):
    pass
"""


def test_a_loaders_worker_that_uses_the_device_is_answered_as_briefly(tmp_path):
    program = tmp_path / "mistake.py"
    program.write_text(WORKER)
    said = _answer(program)
    assert len(said) <= 15, said
    assert all("mistake.py" in row for row in said if row.lstrip().startswith("File ")), said
    line = 1 + next(i for i, row in enumerate(WORKER.splitlines()) if row.endswith("# here"))
    assert any(f'mistake.py", line {line}' in row for row in said), said
    assert 'move the batch in the training loop: `batch.to("jax")`' in said[-2] + said[-1], said


def test_what_goes_wrong_in_a_worker_without_calque_is_printed_as_ever(tmp_path):
    program = tmp_path / "mistake.py"
    program.write_text(WORKER.replace('torch.full((3,), float(i), device="jax")', "1 / 0"))
    said = _answer(program)
    assert any("fetch.py" in row for row in said), said
