"""`calque.export`: PyTorch programs as StableHLO, reloaded and run at several sizes."""

import dataclasses
import math
import pickle
import subprocess
import sys

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim
from torch.utils import _pytree as pytree

import calque
from calque.upstream.torch_internals import export_utils
from tests import new_process

BATCH = Dim("batch", min=1, max=1024)
TIME = Dim("time", min=4, max=64)


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor, scale: float) -> torch.Tensor:
        return x * scale


class CNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.linear = nn.Linear(128, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.norm(self.conv(x)))
        return self.linear(F.max_pool2d(h, 2).flatten(1))


class Decoder(nn.Module):
    """A causal layer whose output shares its weight with the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 16)
        self.places = nn.Embedding(64, 16)
        self.norm = nn.LayerNorm(16)
        self.mix = nn.Linear(16, 48)
        self.head = nn.Linear(16, 11, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        batch, time = ids.shape
        h = self.tokens(ids) + self.places(torch.arange(time, device=ids.device))
        q, k, v = self.mix(self.norm(h)).view(batch, time, 3, 2, 8).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(h + mixed.transpose(1, 2).reshape(batch, time, 16))


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def image(batch: int) -> torch.Tensor:
    return torch.randn(batch, 3, 8, 8)


def rows(batch: int) -> torch.Tensor:
    return torch.randn(batch, 4)


def sequence(batch: int) -> torch.Tensor:
    return torch.randn(batch, 3 + batch, 16)


def tokens(batch: int) -> torch.Tensor:
    return torch.randint(0, 11, (batch, 3 + batch))


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)), rows, {0: BATCH}),
    "cnn": (CNN, image, {0: BATCH}),
    "encoder": (encoder, sequence, {0: BATCH, 1: TIME}),
    "decoder": (Decoder, tokens, {0: BATCH, 1: TIME}),
}


def agree(got, want) -> None:
    got, _ = pytree.tree_flatten(got)
    want, _ = pytree.tree_flatten(want)
    for array, tensor in zip(got, want, strict=True):
        assert array.shape == tuple(tensor.shape)
        expected = tensor.detach().cpu().numpy()
        assert array.dtype == expected.dtype
        np.testing.assert_allclose(array, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", MODELS)
def test_one_program_serves_every_batch_size_after_a_reload(name):
    pytest.importorskip("flatbuffers")
    make, inputs, dynamic = MODELS[name]
    model = make().eval()
    data = calque.export(model, (inputs(3),), dynamic_shapes=(dynamic,)).serialize()
    loaded = calque.load_exported(data, model.state_dict())
    for batch in (1, 2, 7):
        x = inputs(batch)
        agree(loaded.call(x), model(x))


@pytest.mark.parametrize("name", MODELS)
def test_without_dynamic_shapes_the_sizes_are_those_of_the_example(name):
    make, inputs, _ = MODELS[name]
    model, x = make().eval(), inputs(3)
    program = calque.export(model, (x,))
    agree(program.call(x), model(x))
    assert "?" not in program.stablehlo()
    with pytest.raises(ValueError, match="dimension 0 of argument 0 .* is 2, .* takes 3"):
        program.call(inputs(2))


def test_a_model_on_the_device_is_exported_too():
    model, x = CNN().eval(), image(2)
    want = model(x)
    program = calque.export(model.to("jax"), (x.to("jax"),), dynamic_shapes=({0: BATCH},))
    agree(program.call(x.to("jax")), want)


def test_the_bytes_run_where_there_is_no_pytorch(tmp_path):
    pytest.importorskip("flatbuffers")
    model, x = CNN().eval(), image(5)
    program = calque.export(model, (image(2),), dynamic_shapes=({0: BATCH},))
    (tmp_path / "program").write_bytes(program.serialize())
    np.savez(tmp_path / "state.npz", **program.state)
    np.save(tmp_path / "x.npy", x.numpy())
    script = """
import sys
sys.modules["torch"] = None
import jax, numpy as np
from pathlib import Path
program = jax.export.deserialize(bytearray(Path("program").read_bytes()))
np.save("y.npy", program.call(dict(np.load("state.npz")), np.load("x.npy")))
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path)
    agree(np.load(tmp_path / "y.npy"), model(x))


def test_weights_are_arguments_of_the_program():
    model, other = CNN().eval(), CNN().eval()
    program = calque.export(model, (image(2),), dynamic_shapes=({0: BATCH},))
    assert set(program.state) == set(model.state_dict()) - {"norm.num_batches_tracked"}
    x = image(3)
    agree(program.with_state(other.state_dict()).call(x), other(x))
    agree(program.call(x), model(x))
    with pytest.raises(KeyError, match=r"linear\.weight"):
        program.with_state({n: t for n, t in other.state_dict().items() if n != "linear.weight"})


def test_written_buffers_come_back_beside_the_result():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).train()
    program = calque.export(model, (rows(5),), dynamic_shapes=({0: Dim("batch", min=2)},))
    for batch in (3, 9):
        x = rows(batch)
        result, new = program.call(x)
        agree(result, model(x))
        buffers = dict(model.named_buffers())
        assert set(new) == set(buffers)
        agree(new, {name: buffers[name] for name in new})
        program = program.with_state({**program.state, **new})


class Containers(nn.Module):
    def forward(self, x, *, scale=1.0, mask=None, mode="sum"):
        return {"y": x["u"] * scale, "rest": [x["v"], (mask, x["u"].shape[0])]}


def test_containers_and_python_values():
    x = {"v": torch.ones(3), "u": torch.full((3,), 2.0)}
    program = calque.export(Containers(), (x,), {"scale": 2.0})
    for scale in (2.0, None):
        got = program.call({"u": np.full(3, 2, np.float32), "v": x["v"]}, scale=scale)
        assert got["y"].tolist() == [4, 4, 4]
        assert got["rest"][0].tolist() == [1, 1, 1]
        assert got["rest"][1][0] is None
        assert int(got["rest"][1][1]) == 3
    with pytest.raises(ValueError, match=r"2\.0.*3\.0.*scale"):
        program.call(x, scale=3.0)


@dataclasses.dataclass
class Pair:
    first: torch.Tensor
    second: torch.Tensor


def test_a_dataclass_becomes_a_dict():
    if Pair not in pytree.SUPPORTED_NODES:
        torch.export.register_dataclass(Pair)

    class Swap(nn.Module):
        def forward(self, pair: Pair) -> Pair:
            return Pair(pair.second, pair.first)

    pair = Pair(torch.ones(2), torch.zeros(3))
    got = calque.export(Swap(), (pair,)).call(pair)
    assert set(got) == {"first", "second"}
    assert got["first"].shape == (3,)


class Apply(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def written(x):
    y = x * 1
    y[:, 1:3].mul_(2)
    y[:, -1] += 1
    y[1:] = y[:-1] + 0
    y[::2].fill_(3)
    y[:0] = 1
    return y


PROGRAMS = {
    "writes": written,
    "slices": lambda x: (x[1:], x[:, 1:3], x[:-1], x[::1, ::2], x[-1]),
    "joins": lambda x: (torch.cat([x, x]), torch.stack([x, x], 1), x.repeat(1, 2)),
    "over the batch": lambda x: (x.sum(0), x.mean(), x.var(0), x.std(), x.amax(0), x.argmax(0)),
    "scans": lambda x: (x.cumsum(0), x.flip(0), x.softmax(0), x.logsumexp(0)),
    "order": lambda x: (x.sort(0)[0], x.topk(2, 1)[0], x.argsort(1)),
    "indices": lambda x: (
        x[torch.tensor([1, 0])],
        x.index_select(1, torch.tensor([2, 0])),
        x.gather(1, x.argmax(1, keepdim=True)),
        x.scatter(0, torch.zeros(1, 4, dtype=torch.int64), 1.0),
    ),
    "sizes": lambda x: (torch.zeros(x.shape[0], 2) + x.shape[0], torch.arange(x.shape[0]) * 2.5),
    "triangles": lambda x: (torch.tril(x @ x.T), (x @ x.T).triu(), (x @ x.T).diagonal()),
    "losses": lambda x: (F.cross_entropy(x, x.argmax(1)), F.mse_loss(x, x * 2)),
    "chunks": lambda x: (*x.chunk(2, 1), *x.unbind(1), *x.split([1, 3], 1)),
    "numbers": lambda x: (
        x * 2 + 1,
        x > 0,
        x.pow(2),
        1 / x,
        x.clamp(0, 1),
        torch.where(x > 0, x, 2),
    ),
    "dtypes": lambda x: (x.double(), (x * 9).int(), x.bool(), (x > 0).sum(), x.half() + 1),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "expand": lambda x: (x.unsqueeze(0).expand(2, -1, -1), x.unsqueeze(1).squeeze(1)),
    "cond": lambda x: torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,)),
    "conjugates": lambda x: (
        torch.view_as_real(torch.complex(x, x + 1).conj() * 2),
        torch.complex(x, x + 1).conj().imag + 1,
    ),
    "scalar": lambda x: x.new_full((x.shape[0],), 3.0) + torch.full_like(x[:, 0], 2),
}


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", PROGRAMS)
def test_operators_over_a_dynamic_batch(name):
    model = Apply(PROGRAMS[name])
    batch = Dim("batch", min=4, max=1024)
    program = calque.export(model, (rows(5),), dynamic_shapes=(({0: batch},),))
    for size in (4, 9):
        x = rows(size)
        agree(program.call(x), model(x))


IMAGES = {
    "resize": lambda x: (
        F.interpolate(x, scale_factor=2, mode="bilinear"),
        F.interpolate(x, size=5),
        F.interpolate(x, scale_factor=1.5, mode="bicubic"),
    ),
    "pool": lambda x: (F.avg_pool2d(x, 2), F.adaptive_avg_pool2d(x, 3), F.max_pool2d(x, 2)),
    "norms": lambda x: (F.group_norm(x, 3), F.instance_norm(x), F.normalize(x)),
    "places": lambda x: (F.pad(x, (1, 2, 3, 4)), F.unfold(x, 3), x.roll(1, 2)),
}


@pytest.mark.parametrize("name", IMAGES)
def test_operators_on_images_of_a_dynamic_batch(name):
    model = Apply(IMAGES[name])
    program = calque.export(model, (image(2),), dynamic_shapes=(({0: BATCH},),))
    x = image(5)
    agree(program.call(x), model(x))


ANY_SIZE = {
    "resize": lambda x: (
        F.interpolate(x, scale_factor=2, mode="nearest"),
        F.interpolate(x, scale_factor=0.5, mode="nearest-exact"),
        F.interpolate(x, scale_factor=1.5, mode="bilinear"),
        F.interpolate(x, scale_factor=2, mode="bicubic", align_corners=True),
        F.interpolate(x, size=(7, 5), mode="bilinear"),
    ),
    "pool": lambda x: (F.max_pool2d(x, 3, 2, 1), F.adaptive_avg_pool2d(x, (2, 3))),
    "average": lambda x: (F.avg_pool2d(x, 2), F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)),
    "places of maxima": lambda x: F.max_pool2d(x, 2, return_indices=True)[1],
    "up again": lambda x: F.interpolate(F.max_pool2d(x, 2), size=x.shape[2:], mode="bilinear"),
    "padded average": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "added to another": lambda x: _pyramid(F.max_pool2d(x, 2)),
    "beside another": lambda x: _beside(x, F.avg_pool2d(x, 3)),
    "computed": lambda x: (x * (x.shape[2] / 2 + 1), torch.ones(math.ceil(x.shape[3] / 2))),
}


def _pyramid(x):
    return x + F.interpolate(F.max_pool2d(x, 2), size=x.shape[2:], mode="bilinear")


def _beside(x, small):
    height, width = x.shape[2] // 3, x.shape[3] // 3
    return torch.cat([small, F.interpolate(x, size=(height, width))], 1)


@pytest.mark.parametrize("name", ANY_SIZE)
def test_images_of_any_size(name):
    model = Apply(ANY_SIZE[name])
    sizes = {2: Dim("height", min=8, max=64), 3: Dim("width", min=8, max=64)}
    program = calque.export(model, (torch.randn(2, 3, 16, 16),), dynamic_shapes=((sizes,),))
    for height, width in ((16, 16), (9, 21)):
        x = torch.randn(2, 3, height, width)
        agree(program.call(x), model(x))


def test_a_size_by_a_factor_that_floats_round_is_refused():
    model = Apply(lambda x: F.interpolate(x, scale_factor=1.7))
    sizes = {2: Dim("height", min=8, max=64)}
    with pytest.raises(calque.TraceError, match=r"test_export.py:\d+.*not a simple fraction"):
        calque.export(model, (torch.randn(2, 3, 16, 16),), dynamic_shapes=((sizes,),))


def test_derived_dimensions_and_their_bounds():
    batch = Dim("batch", min=2, max=8)
    model = Apply(lambda x, y: x[::2] + y)
    example = (torch.ones(6, 2), torch.ones(3, 2))
    program = calque.export(model, example, dynamic_shapes=(({0: 2 * batch}, {0: batch}),))
    x, y = torch.randn(10, 2), torch.randn(5, 2)
    agree(program.call(x, y), model(x, y))
    with pytest.raises(ValueError, match="batch|s\\d+"):
        program.call(torch.ones(9, 2), y)
    with pytest.raises(ValueError, match="8"):
        program.call(torch.ones(18, 2), torch.ones(9, 2))


# Linear algebra -----------------------------------------------------------------------------------


class Call(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


LINALG = torch.linalg
MATRICES = {
    "inverse": LINALG.inv,
    "cholesky": LINALG.cholesky,
    "solution": lambda x: LINALG.solve(x, x[..., :2] + 1),
    "determinant": lambda x: (LINALG.det(x), LINALG.slogdet(x)),
    "lu": lambda x: LINALG.lu_solve(*LINALG.lu_factor(x), x),
    "qr": lambda x: LINALG.qr(x).R.abs(),
    "svd": lambda x: LINALG.svd(x).S,
    "eigh": lambda x: LINALG.eigh(x).eigenvalues,
    "norm": lambda x: (LINALG.norm(x, "nuc"), LINALG.pinv(x)),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", MATRICES)
def test_linear_algebra_after_a_reload(name):
    pytest.importorskip("flatbuffers")
    x = torch.randn(4, 4)
    x = x @ x.T + 4 * torch.eye(4)
    model = Call(MATRICES[name])
    loaded = calque.load_exported(calque.export(model, (x,)).serialize())
    agree(loaded.call(x), model(x))


def test_what_has_no_inverse_is_not_finite():
    model = Call(torch.linalg.inv)
    program = calque.export(model, (torch.eye(3).repeat(2, 1, 1),), dynamic_shapes=({0: BATCH},))
    x = torch.stack([torch.eye(3), torch.ones(3, 3), 2 * torch.eye(3)])
    found = program.call(x)
    assert np.isfinite(found).all((1, 2)).tolist() == [True, False, True]
    agree(found[2], torch.eye(3) / 2)


# What is refused ----------------------------------------------------------------------------------


class Blocks(nn.Module):
    def forward(self, x):
        return F.adaptive_max_pool1d(x.T.unsqueeze(0), 2)


class Places(nn.Module):
    def forward(self, x):
        return x.nonzero()


class Write(nn.Module):
    def forward(self, x):
        return x.add_(1) * 2


class Drop(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.5, training=True)


@torch.library.custom_op("calque_test::export_only_cpu", mutates_args=(), device_types="cpu")
def only_cpu(x: torch.Tensor) -> torch.Tensor:
    return x + 1


only_cpu.register_fake(torch.empty_like)


class Scan(nn.Module):
    def forward(self, x):
        return torch.logcumsumexp(x, 0)


class OnlyCPU(nn.Module):
    def forward(self, x):
        return only_cpu(x)


@pytest.mark.parametrize(
    ("module", "error", "words"),
    [
        (Blocks, calque.TraceError, "aten::"),
        (Scan, calque.TraceError, "aten::logcumsumexp needs static sizes"),
        (Places, calque.UnsupportedOpError, "aten::nonzero"),
        (Write, calque.TraceError, "return the new value"),
        (Drop, calque.TraceError, "eval()"),
        (OnlyCPU, calque.UnsupportedOpError, "export_only_cpu"),
    ],
)
def test_what_cannot_be_exported_is_refused_at_the_users_line(module, error, words):
    batch = Dim("batch", min=4, max=1024)
    with pytest.raises(error) as raised:
        calque.export(module(), (rows(5),), dynamic_shapes=({0: batch},))
    line = module.forward.__code__.co_firstlineno + 1
    assert f"test_export.py:{line} in forward" in str(raised.value)
    assert words in str(raised.value)


def test_nothing_is_sent_to_the_cpu_where_sizes_are_known():
    with pytest.raises(calque.UnsupportedOpError, match=r"forward.*export_only_cpu"):
        calque.export(OnlyCPU(), (rows(5),))


def test_serialize_says_what_it_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    program = calque.export(nn.Linear(4, 2), (rows(3),))
    with pytest.raises(ImportError, match=r"calque\[export\]"):
        program.serialize()


DAMAGED = """
import random, struct, sys
import torch, calque
from calque.interop import sealed

model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
x = torch.randn(2, 4)
whole = calque.export(model, (x,)).serialize()
draw = random.Random(0)

def mutated(data):
    data, place = bytearray(data), draw.randrange(len(whole))
    kind = draw.randrange(5)
    if kind == 0:
        data[place] ^= 1 << draw.randrange(8)
    elif kind == 1:
        del data[place:]
    elif kind == 2:
        data[place:place] = draw.randbytes(draw.randint(1, 9))
    elif kind == 3:
        del data[place : place + draw.randint(1, 9)]
    else:
        data[place] = (data[place] + draw.randint(1, 255)) % 256
    return bytes(data)

told = set()
for _ in range(2000):
    try:
        calque.load_exported(mutated(whole), model.state_dict())
    except ValueError as error:
        told.add(str(error).split(":")[0].partition(" bytes")[2] or "damaged")
    else:
        sys.exit("damaged bytes were loaded")
assert len(told) == 2, told
for data in b"", b"not a program", calque.export(model, (x,)).program.serialize():
    try:
        calque.load_exported(data)
    except ValueError as error:
        assert "not a program that calque exported" in str(error), error
    else:
        sys.exit("other bytes were loaded")
sealed._VERSION = 2
newer = sealed.seal(b"of the future")
sealed._VERSION = 1
try:
    calque.load_exported(newer)
except ValueError as error:
    assert "has version 2 of calque's format" in str(error), error
loaded = calque.load_exported(memoryview(whole), model.state_dict())
torch.testing.assert_close(calque.to_torch(loaded.call(x)).cpu(), model(x))
"""


def test_pytorchs_operators_are_looked_up_once(monkeypatch):
    looked = []
    original = export_utils._materialize_cpp_cia_ops
    monkeypatch.setattr(
        export_utils, "_materialize_cpp_cia_ops", lambda: (looked.append(1), original())
    )
    usual = export_utils._materialize_cpp_cia_ops
    for count in (1, 2):
        calque.export(nn.Linear(4, 2), (rows(3),))
        assert len(looked) == count
    assert export_utils._materialize_cpp_cia_ops is usual


def test_bytes_that_are_not_whole_are_refused():
    done = new_process.run(DAMAGED)
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_program_says_what_it_takes():
    program = calque.export(nn.Linear(4, 2), (rows(3),), platforms=["cpu", "tpu"])
    assert repr(program) == "Exported(float32[3, 4]) on cpu, tpu"
    assert isinstance(program.program, jax.export.Exported)
    assert isinstance(program.exported_program, torch.export.ExportedProgram)
    assert "stablehlo.dot_general" in program.stablehlo()


def test_a_program_is_pickled_with_its_weights():
    x = rows(3)
    program = calque.export(nn.Linear(4, 2), (x,))
    assert np.array_equal(pickle.loads(pickle.dumps(program))(x), program(x))
    again = pickle.loads(pickle.dumps(calque.export(Scaled(), (x, 2.0))))
    with pytest.raises(ValueError, match=r"2\.0"):
        again(x, 3.0)
