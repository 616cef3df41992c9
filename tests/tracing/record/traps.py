"""Programs that recordings get wrong: `TRAPS` maps a name to a maker of program and inputs."""

import asyncio
import copy
import dataclasses
import datetime
import gc
import threading
import time
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch import relu as early_bound_relu
from torch.nn import functional as F
from torch.nn.functional import linear as early_bound_linear
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint


class Trap(NamedTuple):
    """A program, what draws its inputs, and whether it is right, refused or guarded."""

    make: Callable[[], Any]
    draw: Callable[[], tuple[Any, ...]]
    verdict: str


TRAPS: dict[str, Trap] = {}


def trap(
    *shapes: tuple[int, ...], verdict: str = "right", draw: Callable[[], Any] | None = None
) -> Callable[[Any], Any]:
    """Enter a function of float tensors of these shapes, or a module class, into the table.

    Args:
        verdict: "right": the graph computes what the program does, on any inputs. "guarded": on
            other inputs the graph raises. "refused": there is no graph.
    """

    def enter(made: Any) -> Any:
        def tensors() -> tuple[Tensor, ...]:
            return tuple(torch.randn(shape) for shape in shapes)

        is_class = isinstance(made, type)
        TRAPS[made.__name__] = Trap(
            (lambda: made()) if is_class else (lambda: made), draw or tensors, verdict
        )
        return made

    return enter


# Writes ------------------------------------------------------------------------------------------


@trap((4, 3))
def in_place_on_a_view(x: Tensor) -> Tensor:
    y = x.clone()
    y.view(-1)[3:5].mul_(7)
    return y + 1


@trap((6,))
def overlapping_views(x: Tensor) -> Tensor:
    y = x.clone()
    windows = y.unfold(0, 3, 1)
    y[2:4].add_(10)
    windows[0].mul_(2)
    return windows.sum(1) + y.sum()


@trap((4,))
def unused_result_in_place(x: Tensor) -> Tensor:
    y = x * 2
    y.add_(1)
    y.t()
    return y


@trap((4,))
def writes_to_its_input(x: Tensor) -> Tensor:
    x += 1
    return x * 2


@trap((4,), (4,))
def out_argument(x: Tensor, y: Tensor) -> Tensor:
    buffer = torch.empty(4)
    torch.add(x, y, out=buffer)
    return buffer * 2


@trap((4,))
def writes_to_data(x: Tensor) -> Tensor:
    y = x.clone()
    y.data.mul_(3)
    y.data = y.data + 1
    return y


@trap((4, 3))
def set_items(x: Tensor) -> Tensor:
    y = torch.zeros(4, 3)
    y[1] = x[0]
    y[:, 2] = 5
    y[y > 4] = -1
    return y


@trap((3,), (3,))
def foreach(x: Tensor, y: Tensor) -> Any:
    pair = [x.clone(), y.clone()]
    torch._foreach_add_(pair, 2.0)
    return torch._foreach_mul(pair, 3.0)


@trap((3,))
def accumulates(x: Tensor) -> Tensor:
    total = torch.zeros(3)
    for _ in range(3):
        total += x
    return total


@trap((4, 4))
def fills_diagonal(x: Tensor) -> Tensor:
    y = x.clone()
    y.diagonal().zero_()
    y.triu_()
    return y


@trap((3,))
def real_and_imaginary_parts(x: Tensor) -> Tensor:
    z = torch.complex(x, x * 2)
    z.real.mul_(2)
    z.imag[0] = 9
    return torch.view_as_real(z)


# Names, properties, methods ----------------------------------------------------------------------


@trap((2, 3), (4, 3))
def early_bound_names(x: Tensor, w: Tensor) -> Tensor:
    return early_bound_relu(early_bound_linear(x, w))


@trap((2, 3))
def properties(x: Tensor) -> Tensor:
    return x.T @ x.mT.mT + x.T.H.mH.sum()


@trap((2, 3))
def unbound_methods(x: Tensor) -> Tensor:
    return Tensor.flatten(Tensor.exp(x))


@trap((2, 3))
def operators_of_torch_ops(x: Tensor) -> Tensor:
    return torch.ops.aten.mul.Tensor(x, x) + torch.ops.aten.relu(x)


@trap((3, 5))
def several_results(x: Tensor) -> Any:
    values, indices = x.topk(2)
    mean, variance = torch.var_mean(x)
    return values, indices, mean + variance


@trap((2, 3), (4, 3))
def only_keywords(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat(tensors=[x, y], dim=0).sum(dim=1, keepdim=True)


@trap((4,))
def iterates(x: Tensor) -> Tensor:
    total = torch.zeros(())
    for element in x:
        total = total * 2 + element
    a, *rest = x
    return total + a + rest[-1]


@trap((4,))
def reflected_operators(x: Tensor) -> Tensor:
    return 1 / (2 - x) ** 2 + 3**x


# Containers --------------------------------------------------------------------------------------


@trap(draw=lambda: ({"a": torch.randn(3), "b": [torch.randn(3), (torch.randn(3),)]},))
def nested_inputs(batch: dict[str, Any]) -> Any:
    b, (c,) = batch["b"]
    return {"sum": batch["a"] + b, "rest": [c, (c * 2, None)]}


@dataclasses.dataclass
class Pair:
    first: Tensor
    second: Any = None


Point = namedtuple("Point", "x y")


@trap(draw=lambda: (Pair(torch.randn(3), [torch.randn(3)]),))
def data_classes(pair: Pair) -> Pair:
    return Pair(pair.first + pair.second[0], {"twice": pair.first * 2})


@trap(draw=lambda: (Point(torch.randn(3), torch.randn(3)),))
def named_tuples(point: Any) -> Any:
    return Point(point.y * 2, point.x + 1)


@trap((3,))
def ordered_dict_result(x: Tensor) -> Any:
    return OrderedDict([("b", x + 1), ("a", x * 2)])


@trap(draw=lambda: (torch.randn(3), torch.randn(3), torch.randn(3)))
def starred(x: Tensor, *rest: Tensor, scale: float = 2.0, **more: Tensor) -> Tensor:
    return x * scale + sum(rest)


@trap((3,))
def returns_its_input_and_a_constant(x: Tensor) -> Any:
    return x, torch.ones(2), None, "text", 3


# Modules -----------------------------------------------------------------------------------------


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.again = self.layer

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.tanh(self.layer(x))
        return self.again(x)


trap((2, 3))(Shared)


@trap((5, 3))
class SwitchesModes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        self.bn.train()
        y = self.bn(x)
        self.bn.eval()
        return y + self.bn(x)


@trap((5, 3))
class TrainsBatchNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(x)


@trap((3,))
class CountsInABuffer(nn.Module):
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return x * self.count


@trap((3,), verdict="refused")
class ReplacesABuffer(nn.Module):
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = self.mean * 0.9 + x
        return x - self.mean


@trap((3,), verdict="refused")
class CountsInPython(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        return x * self.steps


@trap((3,), verdict="refused")
class CachesWhatItComputes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        if "scale" not in self.cache:
            self.cache["scale"] = x.abs().max()
        return x / self.cache["scale"]


@trap((3,))
class AssignsAnAttribute(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        self.doubled = x * 2
        return self.doubled + 1


@trap((2, 4, 3))
class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 5, num_layers=2, batch_first=True)
        self.gru = nn.GRU(5, 2, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        y, (h, c) = self.lstm(x)
        z, last = self.gru(y)
        return z, last, h + c


@trap((2, 4, 8))
class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        y, weights = self.attention(x, x, x)
        return y, weights, self.attention(y, x, x, need_weights=False)[0]


@trap((2, 4, 8))
class EncodesFast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.encoder(x)


@trap((2, 3))
class HasHooks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.layer.register_forward_hook(lambda module, args, result: result * 2)
        self.layer.register_forward_pre_hook(lambda module, args: (args[0] + 1,))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


@trap((2, 3))
class UsesParameters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))
        self.table = torch.randn(3)
        self.scales = nn.ParameterList([nn.Parameter(torch.randn(3)) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.table * self.scales[0] - self.scales[1]


@trap((2, 3))
class StashesInside(nn.Module):
    """What a submodule leaves on itself is used by the outer one."""

    class Inner(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            self.hidden = x * 3
            return super().forward(self.hidden)

    def __init__(self) -> None:
        super().__init__()
        self.inner = self.Inner(nn.Linear(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        return y + self.inner.hidden


# Tensors from outside -----------------------------------------------------------------------------


@trap((200,))
def reuses_ids(x: Tensor) -> Tensor:
    total = torch.zeros(())
    for i in range(200):
        total = total + (x[i] * i).sin()
    return total


OUTSIDE = torch.arange(3.0)


@trap((3,))
def uses_a_global(x: Tensor) -> Tensor:
    return x * OUTSIDE


@trap((3,))
def makes_tensors(x: Tensor) -> Tensor:
    a = torch.tensor([1.0, 2.0, 3.0])
    a += x
    return a + torch.arange(3) + torch.zeros_like(x) + x.new_ones(3)


@trap((3,))
def makes_tensors_as_of_old(x: Tensor) -> Tensor:
    a = torch.Tensor([1, 2, 3])
    a.mul_(2)
    b = torch.Tensor(2, 3).zero_()
    return x * a + b.sum(0)


@trap((3,))
def tensors_from_numpy(x: Tensor) -> Tensor:
    table = torch.from_numpy(np.array([1.0, 2.0, 3.0], np.float32))
    table += 1
    return x * table + torch.as_tensor(np.ones(3, np.float32))


@trap((3,))
def arrays_written_as_tensors(x: Tensor) -> Tensor:
    table = torch.as_tensor(np.array([1.0, 2.0, 3.0], np.float32))
    table.mul_(x)
    other = torch.asarray(np.ones(3, np.float32))
    other += x
    return table + other


@trap((3,), verdict="refused")
def writes_through_numpy(x: Tensor) -> Tensor:
    y = x * 2
    y.numpy()[0] = 5
    return y + 1


@trap((3,), verdict="refused")
def buffers_from_bytes(x: Tensor) -> Tensor:
    return x * torch.frombuffer(bytearray(12), dtype=torch.float32)


@torch.library.custom_op("calque_tests::scaled", mutates_args=())
def scaled(x: Tensor, factor: float) -> Tensor:
    return torch.from_numpy(x.detach().numpy() * np.float32(factor))


@scaled.register_fake
def _(x: Tensor, factor: float) -> Tensor:
    return torch.empty_like(x)


@trap((3,))
def custom_operators(x: Tensor) -> Tensor:
    return scaled(x, 3.0) + 1


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * 100


@trap((3,))
def autograd_functions(x: Tensor) -> Tensor:
    y = x.detach().requires_grad_()
    z = Doubled.apply(y)
    (gradient,) = torch.autograd.grad(z.sum(), y)
    return z.detach() + gradient


@trap((3,))
def gradients_inside(x: Tensor) -> Tensor:
    y = x.detach().requires_grad_()
    (y * y).sum().backward()
    assert y.grad is not None
    return y.grad + 1


@torch.jit.script
def _scripted(x: Tensor) -> Tensor:
    y = x.view(-1, 1)
    for _ in range(2):
        y = y * 2
    return y.t().relu()


@trap((4,))
def scripted_functions(x: Tensor) -> Tensor:
    return _scripted(x + 1) - 1


@torch.jit.script
def _scripted_choice(x: Tensor) -> Tensor:
    if bool(x.sum() > 0):
        return x * 2
    return x - 1


@trap(draw=lambda: (torch.randn(4).sign() * 3,), verdict="guarded")
def scripted_choices(x: Tensor) -> Tensor:
    return _scripted_choice(x)


class HasAScript(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.jit.script(nn.Sequential(nn.Linear(3, 4), nn.ReLU()))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * 2


trap((2, 3))(HasAScript)


# Execution ----------------------------------------------------------------------------------------


@trap((3,))
def suspended_generators(x: Tensor) -> Tensor:
    def parts() -> Any:
        with torch.no_grad():
            yield x * 2
        yield x * 3

    generator = parts()
    first = next(generator)
    y = (x + 1).exp()
    return first + next(generator) + y


@trap((3,), verdict="refused")
def returns_a_generator(x: Tensor) -> Any:
    return (x * i for i in range(3))


@trap((3,))
def threads(x: Tensor) -> Tensor:
    results: dict[str, Tensor] = {}
    thread = threading.Thread(target=lambda: results.update(y=x * 2))
    thread.start()
    thread.join()
    return results["y"] + 1


@trap((3,))
def thread_pools(x: Tensor) -> Tensor:
    with ThreadPoolExecutor(2) as pool:
        parts = list(pool.map(lambda i: x * i, range(3)))
    return torch.stack(parts)


@trap((3,))
def threads_without_gradients(x: Tensor) -> Any:
    weight, results = nn.Parameter(torch.ones(3)), {}

    def work(name: str, enabled: bool) -> None:
        with torch.set_grad_enabled(enabled):
            results[name] = x * weight

    with torch.set_grad_enabled(not torch.is_grad_enabled()):
        for name, enabled in {"a": False, "b": True}.items():
            thread = threading.Thread(target=work, args=(name, enabled))
            thread.start()
            thread.join()
        results["c"] = x * weight
    return results, [result.requires_grad for result in results.values()]


@trap((3,))
def tasks(x: Tensor) -> Tensor:
    async def work(number: int) -> Tensor:
        await asyncio.sleep(0)
        return x * number

    async def main() -> list[Tensor]:
        return [*await asyncio.gather(work(1), work(2))]

    return torch.stack(asyncio.run(main()))


_POOL = ThreadPoolExecutor(1)


@trap((3,))
def older_thread_pools(x: Tensor) -> Tensor:
    return _POOL.submit(torch.mul, x, 2).result() + 1


_THREADS = ThreadPool(1)


@trap((3,))
def pools_of_multiprocessing(x: Tensor) -> Tensor:
    written = torch.zeros(3)
    _THREADS.apply(lambda: written.copy_(x))
    return torch.stack([*_THREADS.map(torch.sin, [x, x + 1]), written])


@trap((3, 4))
def batched_by_vmap(x: Tensor) -> Tensor:
    return torch.func.vmap(lambda row: (row * 2).softmax(0) + OUTSIDE.sum())(x)


@trap((3,))
def differentiated_by_func(x: Tensor) -> Tensor:
    return torch.func.grad(lambda y: (y**3).sum())(x) + torch.func.vmap(torch.func.grad(torch.sin))(
        x
    )


@trap((3,))
def checkpointed(x: Tensor) -> Tensor:
    return checkpoint(lambda y: (y * 2).sin(), x, use_reentrant=False) + 1


@trap((4, 4))
def autocast_blocks(x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        y = x @ x
    return y.float() + x @ x


@trap((3,))
def grad_modes(x: Tensor) -> Any:
    y = x.detach().requires_grad_()
    with torch.no_grad():
        a = y * 2
    return (y * 3 + a).detach(), torch.tensor(a.requires_grad)


class _Doubling(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return func(*args, **(kwargs or {})) * 2


@trap((3,), verdict="refused")
def dispatch_modes(x: Tensor) -> Tensor:
    with _Doubling():
        return x.sin()


@trap((3,))
def masks_in_place(x: Tensor) -> Tensor:
    mask = x > 0
    mask &= x < 1
    mask |= x < -1
    mask ^= True
    return x * mask


@trap((3,), verdict="refused")
def inference_mode_blocks(x: Tensor) -> Tensor:
    with torch.inference_mode():
        y = x * 2
    return y


# Numbers and shapes ------------------------------------------------------------------------------


@trap((8,), (8,))
def fourier_and_linalg(x: Tensor, y: Tensor) -> Any:
    spectrum = torch.fft.rfft(x) * torch.fft.rfft(y)
    matrix = torch.outer(x, x) + torch.eye(8) * 5
    return torch.fft.irfft(spectrum, n=8), torch.linalg.solve(matrix, y), torch.special.expit(x)


@trap((3,))
def complex_numbers(x: Tensor) -> Tensor:
    z = torch.polar(x.abs(), x)
    return (z * z.conj()).real + z.angle()


@trap((0, 3))
def empty_tensors(x: Tensor) -> Any:
    return x.sum(0), torch.cat([x, torch.ones(1, 3)]), x.reshape(3, 0)


@trap(draw=lambda: (torch.randn(5).sign() * torch.tensor([1.0, 1, 1, 1, 0]),))
def shapes_by_values(x: Tensor) -> Any:
    found = x.nonzero()
    return found, x[x > 0].sum(), torch.unique(x), torch.where(x < 0)


@trap(draw=lambda: ((torch.rand(6) > 0.5).float(),), verdict="guarded")
def reads_a_shape_by_values(x: Tensor) -> Tensor:
    return torch.arange(x.nonzero().shape[0])


@trap(draw=lambda: ((torch.rand(8) > 0.5).float(),), verdict="guarded")
def iterates_over_what_it_found(x: Tensor) -> Tensor:
    total = torch.zeros(1)
    for index in x.nonzero():
        total = total * 2 + index
    return total


@trap((3,))
def draws_random_numbers(x: Tensor) -> Tensor:
    return x + torch.rand(3) + F.dropout(torch.randn_like(x), 0.5)


@trap((3,))
def sets_a_seed(x: Tensor) -> Tensor:
    torch.manual_seed(3)
    return x * torch.rand(3)


@trap((3,), verdict="refused")
def draws_with_numpy(x: Tensor) -> Tensor:
    return x * float(np.random.rand())


@trap((3,))
def items(x: Tensor) -> Tensor:
    scale = x.abs().max().item()
    return x * (scale + 1)


@trap((3,), verdict="guarded")
def decides(x: Tensor) -> Tensor:
    return x * 2 if float(x.sum()) > x.numel() * 100 else x * 3


@trap(draw=lambda: (torch.randn(3).sign() + 1,), verdict="guarded")
def truth_values(x: Tensor) -> Tensor:
    return x + 1 if (x > 1).all() else x - 1


@trap((3,), verdict="guarded")
def items_that_decide(x: Tensor) -> Tensor:
    scale = x.abs().max().item()
    return x / scale if scale > 1 else x * scale


@trap((3,), verdict="guarded")
def lists_of_numbers(x: Tensor) -> Tensor:
    return torch.tensor(x.tolist()[::-1])


@trap((3,), verdict="guarded")
def through_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(np.sort(x.numpy()))


@trap(draw=lambda: (torch.randn(5), torch.randint(1, 4, ())))
def sizes_from_tensors(x: Tensor, n: Tensor) -> Tensor:
    return x[: int(n)].sum() + torch.arange(5)[n:].sum()


@trap((3,), verdict="guarded")
def text(x: Tensor) -> Any:
    return f"{x.sum():.3f}", x


@trap((3,), verdict="refused")
def caught_errors(x: Tensor) -> Tensor:
    try:
        return x.view(7)
    except RuntimeError:
        return x * 2


@trap((3,), verdict="refused")
def asks_what_day_it_is(x: Tensor) -> Tensor:
    return x * datetime.datetime.now().microsecond


@trap((3,), verdict="refused")
def hooks_with_values_inside(x: Tensor) -> Tensor:
    y = x.detach().requires_grad_()
    scale = x * 2
    y.register_hook(lambda grad: grad * scale)
    return torch.autograd.grad((y * y).sum(), y)[0]


@trap((3,))
def hooks(x: Tensor) -> Tensor:
    y = x.detach().requires_grad_()
    y.register_hook(lambda grad: grad * 3)
    return torch.autograd.grad((y * y).sum(), y)[0]


@trap((3,))
def derivatives_of_derivatives(x: Tensor) -> Tensor:
    return torch.func.hessian(lambda y: (y**3).sum())(x)


@trap((4,))
def changes_geometry(x: Tensor) -> Tensor:
    y = torch.empty(0).set_(x).clone().resize_(2)  # pyright: ignore[reportArgumentType]
    return y + x.clone().as_strided((2, 2), (1, 1)).mul_(2).sum()


@trap((3,), verdict="guarded", draw=lambda: (torch.randint(1, 5, (3,)),))
def one_hot_shapes(x: Tensor) -> Tensor:
    return torch.zeros(F.one_hot(x).shape[1])


@trap((3,))
def copies_shallowly(x: Tensor) -> Tensor:
    return copy.copy(x) + 1


@trap((3,), verdict="refused")
def asks_the_clock(x: Tensor) -> Tensor:
    return x * (time.perf_counter() % 1)


_seen: list[int] = []


def _counts() -> int:
    _seen.append(1)
    return len(_seen)


@trap((3,), verdict="refused")
def counts_in_a_global(x: Tensor) -> Tensor:
    return x * _counts()


class Meter:
    def __init__(self) -> None:
        self.total = 0.0

    def add(self, value: float) -> float:
        self.total += value
        return self.total


@trap((3,), verdict="refused")
class CountsInAnObject(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.meter = Meter()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.meter.add(1.0)


def _counting() -> Callable[[Tensor], Tensor]:
    count = 0

    def program(x: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return x * count

    return program


TRAPS["counts_in_a_closure"] = Trap(_counting, lambda: (torch.randn(3),), "refused")


@trap((2, 3))
def makes_a_module(x: Tensor) -> Tensor:
    layer = nn.BatchNorm1d(3, affine=False)
    layer.eval()
    return layer(x) + nn.ReLU()(x)


@trap((3,))
def collects_garbage(x: Tensor) -> Tensor:
    gc.collect()
    return x * OUTSIDE


@trap((3,), verdict="refused")
def collects_garbage_and_makes_tensors(x: Tensor) -> Tensor:
    y = torch.frombuffer(bytearray(12), dtype=torch.float32)
    gc.collect()
    return x * y
