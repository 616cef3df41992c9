"""Views of device tensors: random programs of views, writes and reads, beside CPU PyTorch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import calque
from calque.device.memory.cell import cell_of, is_whole

Tensor = torch.Tensor
Step = Callable[[Tensor], Tensor]
FEW = settings(max_examples=20, deadline=None)


def _dim(draw: st.DrawFn, t: Tensor) -> int:
    return draw(st.integers(-t.ndim, t.ndim - 1))


def _select(draw: st.DrawFn, t: Tensor) -> Step:
    dim = _dim(draw, t)
    index = draw(st.integers(0, t.shape[dim] - 1))
    return lambda x: x.select(dim, index)


def _slice(draw: st.DrawFn, t: Tensor) -> Step:
    dim = _dim(draw, t)
    start = draw(st.integers(0, t.shape[dim] - 1))
    stop = draw(st.integers(start + 1, t.shape[dim]))
    step = draw(st.integers(1, 3))
    return lambda x: torch.ops.aten.slice(x, dim, start, stop, step)


def _transpose(draw: st.DrawFn, t: Tensor) -> Step:
    a, b = _dim(draw, t), _dim(draw, t)
    return lambda x: x.transpose(a, b)


def _permute(draw: st.DrawFn, t: Tensor) -> Step:
    order = draw(st.permutations(range(t.ndim)))
    return lambda x: x.permute(*order)


def _movedim(draw: st.DrawFn, t: Tensor) -> Step:
    a, b = _dim(draw, t), _dim(draw, t)
    return lambda x: x.movedim(a, b)


def _unsqueeze(draw: st.DrawFn, t: Tensor) -> Step:
    dim = draw(st.integers(0, t.ndim))
    return lambda x: x.unsqueeze(dim)


def _squeeze(draw: st.DrawFn, t: Tensor) -> Step:
    return lambda x: x.squeeze()


def _unfold(draw: st.DrawFn, t: Tensor) -> Step:
    dim = _dim(draw, t)
    size = draw(st.integers(1, t.shape[dim]))
    # Disjoint windows, so that a write affects each element once.
    step = draw(st.integers(size, size + 2))
    return lambda x: x.unfold(dim, size, step)


def _diagonal(draw: st.DrawFn, t: Tensor) -> Step:
    a, b = (0, 1) if t.ndim > 1 else (0, 0)
    if a == b:
        return lambda x: x
    return lambda x: x.diagonal(0, a, b)


def _view(draw: st.DrawFn, t: Tensor) -> Step:
    return lambda x: x.view(-1) if x.is_contiguous() else x


def _unflatten(draw: st.DrawFn, t: Tensor) -> Step:
    dim = _dim(draw, t)
    size = t.shape[dim]
    factor = draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
    return lambda x: x.unflatten(dim, (factor, size // factor))


def _chunk(draw: st.DrawFn, t: Tensor) -> Step:
    dim = _dim(draw, t)
    return lambda x: x.chunk(2, dim)[-1]


def _split(draw: st.DrawFn, t: Tensor) -> Step:
    dim = _dim(draw, t)
    return lambda x: x.split(2, dim)[0]


def _unbind(draw: st.DrawFn, t: Tensor) -> Step:
    dim = _dim(draw, t)
    return lambda x: x.unbind(dim)[0]


def _as_strided(draw: st.DrawFn, t: Tensor) -> Step:
    limit = t.untyped_storage().nbytes() // t.itemsize
    offset = draw(st.integers(0, limit - 1))
    step = draw(st.integers(1, 4))
    count = draw(st.integers(1, min(4, (limit - 1 - offset) // step + 1)))
    return lambda x: x.as_strided((count,), (step,), offset)


def _alias(draw: st.DrawFn, t: Tensor) -> Step:
    return draw(st.sampled_from([lambda x: x.detach(), lambda x: x.data, lambda x: x[...]]))


VIEWS = (
    _select,
    _slice,
    _transpose,
    _permute,
    _movedim,
    _unsqueeze,
    _squeeze,
    _unfold,
    _diagonal,
    _view,
    _unflatten,
    _chunk,
    _split,
    _unbind,
    _as_strided,
    _alias,
)
# PyTorch forbids writes to one of several outputs, and `detach` has no gradient.
DIFFERENTIABLE = [v for v in VIEWS if v not in (_chunk, _split, _unbind, _alias, _as_strided)]
WRITES: tuple[Step, ...] = (
    lambda x: x.add_(1),
    lambda x: x.mul_(2),
    lambda x: x.fill_(7),
    lambda x: x.zero_(),
    lambda x: x.copy_(x.clone() + 3),
    lambda x: x.sub_(x),
    lambda x: x.t_() if x.ndim == 2 else x,
    lambda x: x.unsqueeze_(0) if x.ndim < 4 else x,
    lambda x: x.squeeze_(),
    lambda x: x.transpose_(0, -1) if x.ndim else x,
)


def check_same(cpu: list[Tensor], device: list[Tensor]) -> None:
    """Every tensor of one side equals its twin in value, strides and offset."""
    for a, b in zip(cpu, device, strict=True):
        assert (a.shape, a.stride(), a.storage_offset()) == (
            b.shape,
            b.stride(),
            b.storage_offset(),
        )
        torch.testing.assert_close(b.cpu(), a.detach(), rtol=0, atol=0)
        cell = cell_of(b)
        assert cell.viewed or is_whole(cell, b), "a tensor that its cell does not know of"


@FEW
@given(st.data())
def test_views_and_writes_agree_with_the_cpu(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    start = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)
    cpu, device = [start.clone()], [start.to("jax")]
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(cpu) - 1))
        if data.draw(st.booleans()) and cpu[at].ndim and cpu[at].numel():
            step = data.draw(st.sampled_from(VIEWS))(data.draw, cpu[at])
            cpu.append(step(cpu[at]))
            device.append(step(device[at]))
        else:
            write = data.draw(st.sampled_from(WRITES))
            write(cpu[at])
            write(device[at])
        check_same(cpu, device)


@FEW
@given(st.data())
def test_gradients_through_writes_to_views_agree_with_the_cpu(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    leaf = torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape)
    leaves = [leaf.clone().requires_grad_(), leaf.to("jax").requires_grad_()]
    both = [x * 1.5 for x in leaves]
    bases = list(both)
    for _ in range(data.draw(st.integers(1, 4))):
        if both[0].ndim and data.draw(st.booleans()):
            step = data.draw(st.sampled_from(DIFFERENTIABLE))(data.draw, both[0])
            both = [step(x) for x in both]
        else:
            factor = data.draw(st.sampled_from([2.0, -1.0]))
            both = [x.mul_(factor) for x in both]
    for x, base in zip(both, bases, strict=True):
        (x.sum() + (base * base).sum()).backward()
    torch.testing.assert_close(leaves[1].grad.cpu(), leaves[0].grad)


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "index assignment": lambda x: x.__setitem__((slice(None), 1), 9.0),
    "assignment of a step": lambda x: x.__setitem__((slice(0, None, 2), slice(1, None)), -1.0),
    "write through view(-1)": lambda x: x.view(-1).__setitem__(3, 5.0),
    "write through expand's source": lambda x: x[:1].expand(3, 4)[0].clone(),
    "write through data": lambda x: x.data.mul_(3),
    "write through flatten": lambda x: x.flatten().add_(1),
    "write through ravel": lambda x: x.ravel().add_(1),
    "write through reshape": lambda x: x.reshape(2, 6)[1].add_(1),
    "write through view_as": lambda x: x.view_as(torch.empty(4, 3)).add_(1),
    "write through narrow": lambda x: x.narrow(1, 1, 2).fill_(4),
    "write through hsplit": lambda x: x.hsplit(2)[1].zero_(),
    "write through tensor_split": lambda x: x.tensor_split(2)[0].zero_(),
    "write through unsafe_chunk": lambda x: x.unsafe_chunk(2, 1)[0].zero_(),
    "write through unsafe_split": lambda x: x.unsafe_split(2, 1)[0].zero_(),
    "write through swapaxes": lambda x: x.swapaxes(0, 1)[0].zero_(),
    "write through mT": lambda x: x.mT[0].zero_(),
    "write through T": lambda x: x.T[1].add_(1),
    "write through positive": lambda x: x.positive().add_(1),
    "write through contiguous": lambda x: x.contiguous().add_(1),
    "write through real": lambda x: x.real.add_(1),
    "write through expand_as": lambda x: x.expand_as(x).add_(1),
    "write through to": lambda x: x.to(x.dtype).add_(1),
    "write through type_as": lambda x: x.type_as(x).add_(1),
    "write through _reshape_alias": lambda x: torch.ops.aten._reshape_alias(x, (12,), (1,)).add_(1),
    "write through alias": lambda x: torch.ops.aten.alias(x).add_(1),
    "write through lift_fresh": lambda x: torch.ops.aten.lift_fresh(x).add_(1),
    "write through lift": lambda x: torch.ops.aten.lift(x).add_(1),
    "write through view dtype": lambda x: x.view(torch.int32).fill_(7),
    "write through a narrower dtype": lambda x: x.view(torch.int16)[:, 0].fill_(7),
    "write through view_as_complex": lambda x: torch.view_as_complex(x.view(3, 2, 2)).mul_(2),
    "write through resolve_conj": lambda x: x.resolve_conj().add_(1),
    "write through _neg_view": lambda x: torch._neg_view(x).add_(1),
    "write through squeeze of nothing": lambda x: x.squeeze().add_(1),
    "write through squeeze of a dim": lambda x: x.squeeze(0).add_(1),
    "write through unsafe view": lambda x: torch.ops.aten._unsafe_view(x, (4, 3)).add_(1),
    "write through diagonal": lambda x: x.diagonal().fill_(0),
    "fill_diagonal_": lambda x: x.fill_diagonal_(3),
    "write through unfold": lambda x: x.unfold(1, 2, 2).mul_(2),
    "write through set_": lambda x: torch.empty(0, device=x.device).set_(x).add_(1),
    "write through set_ of a storage": lambda x: (
        torch.empty(0, device=x.device).set_(x.untyped_storage()).add_(1)
    ),
    "write through set_ of a part": lambda x: (
        torch.empty(0, device=x.device).set_(x.untyped_storage(), 2, (2, 2), (4, 1)).add_(1)
    ),
    "write through resize_ to less": lambda x: x.view(-1).resize_(4).add_(1),
    "write through as_strided_": lambda x: x.view(-1).as_strided_((2,), (5,), 1).add_(1),
    "write through as_strided_scatter's copy": lambda x: x.as_strided_scatter(
        torch.zeros(2, device=x.device), (2,), (1,)
    ),
    "write through atleast_3d": lambda x: torch.atleast_3d(x).add_(1),
    "write through broadcast_tensors": lambda x: torch.broadcast_tensors(x, x)[0].add_(1),
    "write through meshgrid": lambda x: x.view(-1).clone(),
    "write through chunk of a chunk": lambda x: x.chunk(2, 1)[1].chunk(3, 0)[2].zero_(),
    "write through vsplit and T": lambda x: x.vsplit(3)[1].T.add_(2),
    "write through ops.detach_": lambda x: x.detach().detach_().add_(1),
    "swap of data": lambda x: x.data.t().add_(1),
    "copy of an overlap": lambda x: x[1:].copy_(x[:-1].clone()),
    "self overlap within one row": lambda x: x[0, 1:].copy_(x[0, :-1].clone()),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_write_reaches_all_that_share_the_memory(name: str) -> None:
    start = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    cpu, device = start.clone(), start.to("jax")
    witnesses = [cpu[1:], cpu.t()], [device[1:], device.t()]
    a, b = PROGRAMS[name](cpu), PROGRAMS[name](device)
    check_same([cpu, *witnesses[0]], [device, *witnesses[1]])
    if isinstance(a, Tensor) and a.dtype == cpu.dtype:
        torch.testing.assert_close(b.cpu().resolve_neg(), a.resolve_neg())


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_first_view_is_known_to_its_cell(name: str) -> None:
    start = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    cpu, device = start.clone(), start.to("jax")
    PROGRAMS[name](cpu), PROGRAMS[name](device)
    check_same([cpu], [device])


def test_lazy_conjugates_and_negatives_are_honoured() -> None:
    cpu = torch.complex(torch.arange(4.0), torch.tensor([1.0, -1.0, 2.0, 0.5])).reshape(2, 2)
    device = cpu.to("jax")
    for read in (
        lambda z: z.conj().clone(),
        lambda z: z.conj().cpu(),
        lambda z: z.conj() @ z,
        lambda z: z.conj().imag,
        lambda z: z.conj().imag.clone(),
        lambda z: z.conj().imag + 1,
        lambda z: torch.empty_like(z).copy_(z.conj()),
        lambda z: z.conj().to(torch.complex128),
        lambda z: z.t().conj().resolve_conj(),
        lambda z: torch._neg_view(z.real),
    ):
        torch.testing.assert_close(read(device).cpu(), read(cpu))
    for z in (cpu, device):
        z.conj()[0] = 3 + 1j
        z.conj().mul_(1j)
        z.conj().imag.add_(2)
    torch.testing.assert_close(device.cpu(), cpu)


def test_a_write_through_a_complex_part_reaches_the_base() -> None:
    for part in (lambda z: z.real, lambda z: z.imag, lambda z: torch.view_as_real(z)[..., 0]):
        cpu = torch.complex(torch.arange(3.0), torch.ones(3))
        device = cpu.to("jax")
        for z in (cpu, device):
            part(z).mul_(4)
            part(z)[1] = 9
        torch.testing.assert_close(device.cpu(), cpu)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64, torch.float16])
def test_a_dtype_view_reinterprets_the_bytes(dtype: torch.dtype) -> None:
    cpu = torch.linspace(-3, 3, 8).reshape(2, 4)
    assert torch.equal(cpu.to("jax").view(dtype).cpu(), cpu.view(dtype))
    assert torch.equal(cpu.to("jax").view(dtype)[1:].cpu(), cpu.view(dtype)[1:])


def test_fresh_tensors_have_the_strides_they_are_asked_for() -> None:
    for make in (
        lambda d: torch.empty_strided((2, 3), (1, 2), device=d),
        lambda d: torch.ones(2, 3, device=d).new_empty_strided((2, 3), (1, 5)),
        lambda d: torch.ones(2, 3, device=d).t().clone(),
        lambda d: torch.ones(2, 3, device=d).t().clone(memory_format=torch.contiguous_format),
        lambda d: torch.ones(2, 3, 4, 4, device=d).to(memory_format=torch.channels_last),
        lambda d: torch.empty(2, 3, 4, 4, device=d, memory_format=torch.channels_last),
        lambda d: torch.ones(2, 3, 4, 4, device=d).contiguous(memory_format=torch.channels_last),
        lambda d: torch.empty_like(torch.ones(2, 3, device=d).t()),
        lambda d: torch.zeros_like(torch.ones(2, 3, device=d).t()),
        lambda d: torch.ones(2, 3, device=d).t().to(torch.float64),
        lambda d: torch.ones(3, device=d).expand(2, 3).clone(),
        lambda d: torch.ones(2, 3, device=d).t().to("cpu"),
    ):
        assert make("jax").stride() == make("cpu").stride()


def test_a_write_to_an_expanded_tensor_raises() -> None:
    for device in ("cpu", "jax"):
        with pytest.raises(RuntimeError, match="single memory location"):
            torch.ones(1, 3, device=device).expand(2, 3).add_(1)


def test_as_strided_beyond_the_storage_raises() -> None:
    for device in ("cpu", "jax"):
        with pytest.raises(RuntimeError, match="out of bounds for storage"):
            torch.ones(4, device=device).as_strided((3,), (2,))


def test_resize_keeps_the_elements_in_memory_order() -> None:
    for device in ("cpu", "jax"):
        x = torch.arange(6.0, device=device).reshape(2, 3)
        x.resize_(2, 2)
        assert x.tolist() == [[0, 1], [2, 3]]
        x.resize_(3, 4)
        assert x.reshape(-1)[:6].tolist() == [0, 1, 2, 3, 4, 5]


def test_a_view_that_nobody_may_differentiate_is_shown():
    def shown(device):
        weight = torch.ones((), device=device, requires_grad=True)
        base = torch.arange(4.0, device=device).reshape(2, 2)
        view, _ = base.unbind()
        base.mul_(weight)
        return repr(view), view

    text, view = shown("jax")
    with pytest.raises(RuntimeError, match="returns multiple views"):
        assert view.grad_fn
    assert text == shown("cpu")[0].replace("grad_fn", "device='jax:0', grad_fn")

    @calque.jit
    def run():
        assert isinstance(shown("jax")[0], str)

    run()


PARTIAL = {
    "index_fill_": lambda x: x.index_fill_(0, torch.tensor([1], device=x.device), 5.0),
    "index_put_": lambda x: x.__setitem__(torch.tensor([2], device=x.device), 7.0),
    "triu_": lambda x: x.triu_(),
    "masked_fill_": lambda x: x.masked_fill_(torch.eye(3, device=x.device) > 0, 2.0),
    "threshold_": lambda x: torch.threshold_(x, 1.5, 9.0),
    "fill_": lambda x: x.fill_(-0.0),
}


@pytest.mark.filterwarnings("ignore:Use of")
@pytest.mark.parametrize("overlapping", ["repeated", "windows"])
@pytest.mark.parametrize("name", PARTIAL)
def test_a_write_to_some_of_the_elements_at_one_place_is_seen(name: str, overlapping: str) -> None:
    found = []
    for device in ("cpu", "jax"):
        base = torch.arange(5.0).to(device)
        PARTIAL[name](base[:3].expand(3, 3) if overlapping == "repeated" else base.unfold(0, 3, 1))
        found.append(base.cpu())
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0].signbit(), found[1].signbit())


def test_what_would_depend_on_the_order_of_writes_is_refused() -> None:
    x = torch.arange(6.0, device="jax")
    with pytest.raises(RuntimeError, match="more than one element"):
        x.unfold(0, 3, 1).add_(1)
    assert x.tolist() == [0, 1, 2, 3, 4, 5]
    x.as_strided((2, 2), (3, 2)).add_(1)  # disjoint, but not nested
    assert x.tolist() == [1, 1, 3, 4, 4, 6]
