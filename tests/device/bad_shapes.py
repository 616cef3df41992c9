"""Calls with wrong shapes, dimensions and sizes, for `test_errors.py`.

Each is a function of a `Maker`: `m(2, 3)` is a float32 tensor of that shape on the maker's device,
`m.i`, `m.b`, `m.c`, `m.d` and `m.h` are int64, bool, complex64, float64 and float16 ones, `m.of` is
one of given values. All their methods and arguments come from PyTorch, so that a row reads as the
call it makes.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from calque.ops.table.helpers import names

Case = Callable[[Any], Any]

MATRICES: dict[str, Case] = {
    "mm inner": lambda m: m(2, 3) @ m(4, 5),
    "mm 3d": lambda m: torch.mm(m(2, 3, 4), m(4, 5)),
    "mm 1d": lambda m: torch.mm(m(3), m(3, 5)),
    "matmul 0d": lambda m: torch.matmul(m(), m(3)),
    "matmul batch": lambda m: m(2, 3, 4) @ m(3, 4, 5),
    "mv": lambda m: torch.mv(m(2, 3), m(4)),
    "mv 3d": lambda m: torch.mv(m(2, 3, 3), m(3)),
    "dot lengths": lambda m: torch.dot(m(3), m(4)),
    "dot 2d": lambda m: torch.dot(m(3, 1), m(3)),
    "vdot lengths": lambda m: torch.vdot(m(3), m(4)),
    "inner": lambda m: torch.inner(m(2, 3), m(2, 4)),
    "outer": lambda m: torch.outer(m(2, 3), m(2)),
    "ger": lambda m: torch.ger(m(2), m(2, 2)),
    "bmm batch": lambda m: torch.bmm(m(2, 3, 4), m(3, 4, 5)),
    "bmm inner": lambda m: torch.bmm(m(2, 3, 4), m(2, 3, 5)),
    "bmm 2d": lambda m: torch.bmm(m(3, 4), m(4, 5)),
    "addmm inner": lambda m: torch.addmm(m(2, 5), m(2, 3), m(4, 5)),
    "addmm bias": lambda m: torch.addmm(m(3), m(2, 3), m(3, 5)),
    "addmv": lambda m: torch.addmv(m(3), m(2, 3), m(3)),
    "addr": lambda m: torch.addr(m(3, 3), m(2), m(3)),
    "baddbmm": lambda m: torch.baddbmm(m(2, 3, 4), m(2, 3, 4), m(2, 5, 4)),
    "baddbmm bias": lambda m: torch.baddbmm(m(7), m(2, 3, 4), m(2, 4, 4)),
    "addbmm": lambda m: torch.addbmm(m(3, 4), m(2, 3, 4), m(3, 4, 4)),
    "linear": lambda m: F.linear(m(2, 3), m(4, 5)),
    "linear bias": lambda m: F.linear(m(2, 3), m(4, 3), m(5)),
    "linear 3d": lambda m: F.linear(m(2, 2, 3), m(4, 5), m(4)),
    "bilinear": lambda m: F.bilinear(m(2, 3), m(2, 4), m(5, 3, 3)),
    "einsum sizes": lambda m: torch.einsum("ij,jk->ik", m(2, 3), m(4, 5)),
    "einsum count": lambda m: torch.einsum("ij,jk->ik", m(2, 3)),
    "einsum ranks": lambda m: torch.einsum("ijk->i", m(2, 3)),
    "tensordot": lambda m: torch.tensordot(m(2, 3), m(4, 5), 1),
    "cdist": lambda m: torch.cdist(m(2, 3), m(2, 4)),
    "chain_matmul": lambda m: torch.linalg.multi_dot([m(2, 3), m(4, 5), m(5, 6)]),
    "matrix_power": lambda m: torch.linalg.matrix_power(m(2, 3), 2),
    "trace": lambda m: torch.trace(m(2, 3, 4)),
    "inv not square": lambda m: torch.linalg.inv(m(2, 3)),
    "inv 1d": lambda m: torch.linalg.inv(m(3)),
    "det not square": lambda m: torch.linalg.det(m(2, 3)),
    "slogdet not square": lambda m: torch.linalg.slogdet(m(2, 3)),
    "solve rows": lambda m: torch.linalg.solve(m.eye(3), m(4, 2)),
    "solve not square": lambda m: torch.linalg.solve(m(3, 2), m(3)),
    "cholesky not square": lambda m: torch.linalg.cholesky(m(2, 3)),
    "eigh not square": lambda m: torch.linalg.eigh(m(2, 3)),
    "eig not square": lambda m: torch.linalg.eig(m(2, 3)),
    "svd 1d": lambda m: torch.linalg.svd(m(3)),
    "qr 1d": lambda m: torch.linalg.qr(m(3)),
    "qr mode": lambda m: torch.linalg.qr(m(3, 3), mode="some"),
    "lu 1d": lambda m: torch.linalg.lu(m(3)),
    "matrix_exp": lambda m: torch.linalg.matrix_exp(m(2, 3)),
    "triangular rows": lambda m: torch.linalg.solve_triangular(m(3, 3), m(4, 2), upper=True),
    "lstsq rows": lambda m: torch.linalg.lstsq(m(3, 2), m(4, 2)),
    "cross dtypes": lambda m: torch.linalg.cross(m(3), m.d(3)),
    "cross size": lambda m: torch.linalg.cross(m(4), m(4)),
    "cross shapes": lambda m: torch.linalg.cross(m(2, 3), m(3, 3, 3, 4)),
    "vander": lambda m: torch.linalg.matrix_norm(m(3)),
    "vector_norm dim": lambda m: torch.linalg.vector_norm(m(3), dim=2),
    "tril 1d": lambda m: torch.tril(m(3)),
    "triu 1d": lambda m: torch.triu(m(3)),
    "diag 3d": lambda m: torch.diag(m(2, 3, 4)),
    "pinv 1d": lambda m: torch.linalg.pinv(m(3)),
}

JOINING: dict[str, Case] = {
    "cat sizes": lambda m: torch.cat([m(2, 3), m(2, 4)]),
    "cat ranks": lambda m: torch.cat([m(2, 3), m(2)]),
    "cat 0d": lambda m: torch.cat([m(), m()]),
    "cat empty list": lambda m: torch.cat([]),
    "cat dim": lambda m: torch.cat([m(2), m(2)], 1),
    "stack sizes": lambda m: torch.stack([m(2), m(3)]),
    "stack dim": lambda m: torch.stack([m(2), m(2)], 3),
    "stack empty": lambda m: torch.stack([]),
    "hstack": lambda m: torch.hstack([m(2, 3), m(3, 3)]),
    "vstack": lambda m: torch.vstack([m(2, 3), m(2, 4)]),
    "block_diag": lambda m: torch.block_diag(m(2, 2, 2)),
    "meshgrid": lambda m: torch.meshgrid(m(2, 2), m(2), indexing="ij"),
    "cartesian": lambda m: torch.cartesian_prod(m(2, 2), m(2)),
    "split negative": lambda m: torch.split(m(4), -1),
    "split sum": lambda m: torch.split(m(5), [2, 2]),
    "split zero": lambda m: torch.split(m(5), 0),
    "split dim": lambda m: torch.split(m(5), 2, dim=1),
    "split 0d": lambda m: torch.split(m(), 1),
    "chunk zero": lambda m: torch.chunk(m(5), 0),
    "chunk dim": lambda m: torch.chunk(m(5), 2, 3),
    "tensor_split": lambda m: torch.tensor_split(m(5), 0),
    "tensor_split dim": lambda m: torch.tensor_split(m(5), 2, dim=1),
    "hsplit": lambda m: torch.hsplit(m(5), 2),
    "unbind": lambda m: torch.unbind(m(2), 1),
    "unbind 0d": lambda m: torch.unbind(m()),
    "repeat few": lambda m: m(2, 3).repeat(2),
    "repeat negative": lambda m: m(2, 3).repeat(2, -1),
    "tile negative": lambda m: torch.tile(m(2), (-1,)),
    "repeat_interleave negative": lambda m: m(3).repeat_interleave(-1),
    "repeat_interleave sizes": lambda m: m(3).repeat_interleave(m.of([1, 2])),
    "repeat_interleave below": lambda m: m(2).repeat_interleave(m.of([1, -2])),
    "repeat_interleave float": lambda m: m(2).repeat_interleave(m.of([1.0, 2.0])),
}

GEOMETRY: dict[str, Case] = {
    "view size": lambda m: m(2, 3).view(4),
    "view two unknown": lambda m: m(2, 3).view(-1, -1),
    "view divisor": lambda m: m(2, 3).view(4, -1),
    "view strides": lambda m: m(2, 3).t().view(6),
    "view negative": lambda m: m(2, 3).view(-2, 3),
    "view dtype": lambda m: m(3, 3).view(torch.float64),
    "reshape size": lambda m: m(2, 3).reshape(5),
    "reshape divisor": lambda m: m(2, 3).reshape(4, -1),
    "reshape empty unknown": lambda m: m(0, 3).reshape(0, -1),
    "flatten order": lambda m: m(2, 3, 4).flatten(2, 1),
    "flatten dim": lambda m: m(2, 3).flatten(0, 3),
    "unflatten": lambda m: m(2, 6).unflatten(1, (4, 2)),
    "expand size": lambda m: m(2, 3).expand(4, 3),
    "expand few": lambda m: m(2, 3).expand(3),
    "expand negative": lambda m: m(1, 3).expand(-2, 3),
    "expand leading -1": lambda m: m(3).expand(-1, 3),
    "permute count": lambda m: m(2, 3).permute(0),
    "permute repeated": lambda m: m(2, 3).permute(0, 0),
    "permute range": lambda m: m(2, 3).permute(0, 2),
    "transpose range": lambda m: m(2, 3).transpose(0, 2),
    "t 3d": lambda m: m(2, 3, 4).t(),
    "movedim": lambda m: torch.movedim(m(2, 3), (0, 1), (0, 0)),
    "squeeze dim": lambda m: m(2, 3).squeeze(2),
    "unsqueeze dim": lambda m: m(2, 3).unsqueeze(4),
    "select index": lambda m: m(2, 3).select(0, 2),
    "select dim": lambda m: m(2, 3).select(2, 0),
    "select 0d": lambda m: m().select(0, 0),
    "narrow start": lambda m: m(4).narrow(0, 5, 1),
    "narrow length": lambda m: m(4).narrow(0, 2, 3),
    "narrow negative": lambda m: m(4).narrow(0, 2, -1),
    "narrow 0d": lambda m: m().narrow(0, 0, 1),
    "slice step": lambda m: m(4)[::0],
    "unfold size": lambda m: m(4).unfold(0, 5, 1),
    "unfold step": lambda m: m(4).unfold(0, 2, 0),
    "unfold dim": lambda m: m(4).unfold(1, 2, 1),
    "diagonal same": lambda m: m(3, 3).diagonal(0, 1, 1),
    "diagonal range": lambda m: m(3, 3).diagonal(0, 0, 2),
    "diagonal 1d": lambda m: m(3).diagonal(),
    "as_strided bounds": lambda m: m(4).as_strided((3,), (2,)),
    "as_strided lengths": lambda m: m(4).as_strided((2, 2), (1,)),
    "as_strided negative": lambda m: m(4).as_strided((2,), (-1,)),
    "roll counts": lambda m: torch.roll(m(2, 3), (1, 1), (0,)),
    "roll dim": lambda m: torch.roll(m(2, 3), 1, 2),
    "flip dim": lambda m: torch.flip(m(2, 3), (2,)),
    "flip repeated": lambda m: torch.flip(m(2, 3), (0, 0)),
    "rot90 dims": lambda m: torch.rot90(m(2, 3), 1, (0, 0)),
    "rot90 1d": lambda m: torch.rot90(m(3), 1, (0, 1)),
    "broadcast_to": lambda m: torch.broadcast_to(m(3), (4,)),
    "broadcast_tensors": lambda m: torch.broadcast_tensors(m(3), m(4)),
    "too many indices": lambda m: m(2, 3)[0, 0, 0],
    "int index": lambda m: m(3)[3],
    "index 0d": lambda m: m()[0],
    "pixel_shuffle": lambda m: F.pixel_shuffle(m(1, 3, 2, 2), 2),
    "pixel_unshuffle": lambda m: F.pixel_unshuffle(m(1, 3, 3, 3), 2),
    "channel_shuffle": lambda m: F.channel_shuffle(m(1, 3, 2, 2), 2),
    "fold": lambda m: F.fold(m(1, 5, 4), (3, 3), (2, 2)),
    "unfold kernel": lambda m: F.unfold(m(1, 1, 2, 2), (3, 3)),
    "item": lambda m: m(2).item(),
    "bool of many": lambda m: bool(m(2)),
    "float of many": lambda m: float(m(2)),
    "view_as_real": lambda m: torch.view_as_real(m(2)),
    "view_as_complex": lambda m: torch.view_as_complex(m(3)),
    "mT": lambda m: m(3).mT,
}

BROADCASTING: dict[str, Case] = {
    **{
        f"{name} shapes": lambda m, name=name: getattr(torch, name)(m(2, 3), m(4))
        for name in names(
            "add sub mul div pow atan2 maximum minimum fmod remainder floor_divide eq lt "
            "logical_and hypot copysign xlogy logaddexp nextafter heaviside fmax dist"
        )
    },
    **{
        f"{name} grows": lambda m, name=name: getattr(m(3), name)(m(2, 3))
        for name in (
            names("add_ sub_ mul_ div_ pow_ atan2_ copy_ eq_ logical_and_ fmod_ hypot_ xlogy_")
        )
    },
    "where": lambda m: torch.where(m.b(2), m(3), m(3)),
    "lerp": lambda m: torch.lerp(m(2), m(3), 0.5),
    "lerp weight": lambda m: torch.lerp(m(2), m(2), m(3)),
    "addcmul": lambda m: torch.addcmul(m(2), m(3), m(3)),
    "addcmul_ grows": lambda m: m(2).addcmul_(m(3, 2), m(2)),
    "addcdiv": lambda m: torch.addcdiv(m(2), m(3), m(2)),
    "clamp tensors": lambda m: torch.clamp(m(3), m(2), m(2)),
    "clamp none": lambda m: torch.clamp(m(3)),
    "clamp_ grows": lambda m: m(3).clamp_(m(2, 3)),
    "masked_fill shape": lambda m: m(3).masked_fill(m.b(2), 0.0),
    "masked_fill_ grows": lambda m: m(3).masked_fill_(m.b(2, 3), 0.0),
    "masked_fill value": lambda m: m(3).masked_fill(m.b(3), m(2)),
    "masked_select": lambda m: m(3).masked_select(m.b(2)),
    "masked_scatter": lambda m: m(4).masked_scatter(m.of([True, True, True, False]), m(2)),
    "masked_scatter shape": lambda m: m(4).masked_scatter(m.b(3), m(4)),
    "copy_ shape": lambda m: m(3).copy_(m(4)),
    "fill_ tensor": lambda m: m(3).fill_(m(2)),
    "setitem shape": lambda m: m(3, 4).__setitem__(0, m(3)),
    "setitem slice": lambda m: m(4).__setitem__(slice(0, 2), m(3)),
    "setitem mask": lambda m: m(4).__setitem__(m.of([True, False, True, False]), m(3)),
    "_foreach lengths": lambda m: torch._foreach_add([m(2)], [m(2), m(2)]),
    "_foreach empty": lambda m: torch._foreach_mul([], 2.0),
    "foreach shapes": lambda m: torch._foreach_add_([m(2)], [m(3)]),
    "polar": lambda m: torch.polar(m(2), m(3)),
    "complex": lambda m: torch.complex(m(2), m(3)),
    "isclose": lambda m: torch.isclose(m(2), m(3)),
    "allclose": lambda m: torch.allclose(m(2), m(3)),
    "cov": lambda m: torch.cov(m(2, 3, 4)),
}

DIMENSIONS: dict[str, Case] = {
    **{
        f"{name} dim": lambda m, name=name: getattr(torch, name)(m(2, 3), dim=2)
        for name in names(
            "sum mean prod amax amin max min argmax argmin any all std var median mode cumsum "
            "cumprod cummax cummin logcumsumexp softmax log_softmax sort argsort logsumexp "
            "nansum count_nonzero aminmax std_mean var_mean nanmedian unbind squeeze diff "
            "gradient"
        )
        if name not in ("logsumexp",)
    },
    **{
        f"{name} dim of 0d": lambda m, name=name: getattr(torch, name)(m(), dim=1)
        for name in names("sum mean amax max argmax any cumsum softmax sort median mode")
    },
    **{
        f"{name} repeated dims": lambda m, name=name: getattr(torch, name)(m(2, 3), dim=(0, 0))
        for name in names("sum mean amax amin std var all any nansum")
    },
    "logsumexp dim": lambda m: torch.logsumexp(m(2, 3), 2),
    "norm dim": lambda m: torch.norm(m(2, 3), dim=2),
    "renorm dim": lambda m: torch.renorm(m(2, 3), 2, 2, 1.0),
    "normalize dim": lambda m: F.normalize(m(2, 3), dim=2),
    "topk large": lambda m: torch.topk(m(3), 4),
    "topk negative": lambda m: torch.topk(m(3), -1),
    "topk dim": lambda m: torch.topk(m(3), 1, 1),
    "kthvalue large": lambda m: torch.kthvalue(m(3), 4),
    "kthvalue zero": lambda m: torch.kthvalue(m(3), 0),
    "kthvalue dim": lambda m: torch.kthvalue(m(3), 1, 1),
    "quantile range": lambda m: torch.quantile(m(3), 2.0),
    "quantile dim": lambda m: torch.quantile(m(3), 0.5, dim=1),
    "fft dim": lambda m: torch.fft.fft(m(4), dim=1),
    "fft n": lambda m: torch.fft.fft(m(4), n=0),
    "irfft n": lambda m: torch.fft.irfft(m.c(4), n=-1),
    "fft2 dims": lambda m: torch.fft.fft2(m(4)),
    "fftn repeated": lambda m: torch.fft.fftn(m(4, 4), dim=(0, 0)),
    "stft": lambda m: torch.stft(m(4), 16, return_complex=True, center=False),
    "glu odd": lambda m: F.glu(m(2, 3)),
    "glu dim": lambda m: F.glu(m(2, 4), dim=2),
    "diff n": lambda m: torch.diff(m(3), n=-1),
    "trapezoid": lambda m: torch.trapezoid(m(3), m(4)),
    "cosine_similarity": lambda m: F.cosine_similarity(m(2, 3), m(2, 4)),
    "pairwise_distance": lambda m: F.pairwise_distance(m(2, 3), m(2, 4)),
    "corrcoef": lambda m: torch.corrcoef(m(2, 2, 2)),
    "searchsorted": lambda m: torch.searchsorted(m(2, 3), m(3, 3)),
    "bucketize": lambda m: torch.bucketize(m(3), m(2, 2)),
    "bincount negative": lambda m: torch.bincount(m.of([1, -1])),
    "bincount float": lambda m: torch.bincount(m(3)),
    "bincount weights": lambda m: torch.bincount(m.of([1, 2]), m(3)),
    "histc bins": lambda m: torch.histc(m(3), 0),
    "histc range": lambda m: torch.histc(m(3), 3, 2, 1),
    "unique dim": lambda m: torch.unique(m(3), dim=1),
    "one_hot negative": lambda m: F.one_hot(m.of([-1, 0])),
    "one_hot small": lambda m: F.one_hot(m.of([3, 0]), 2),
    "one_hot float": lambda m: F.one_hot(m(3)),
}

EMPTY: dict[str, Case] = {
    **{
        f"{name} of nothing": lambda m, name=name: getattr(torch, name)(m(0))
        for name in names("max min argmax argmin amax amin aminmax mode kthvalue")
        if name != "kthvalue"
    },
    **{
        f"{name} along nothing": lambda m, name=name: getattr(torch, name)(m(2, 0), dim=1)
        for name in names("max min argmax argmin amax amin aminmax median mode nanmedian cummax")
    },
    "kthvalue of nothing": lambda m: torch.kthvalue(m(0), 1),
    "quantile of nothing": lambda m: torch.quantile(m(0), 0.5),
    "multinomial of nothing": lambda m: torch.multinomial(m(0), 1),
    "take from nothing": lambda m: torch.take(m(0), m.of([0])),
    "index nothing": lambda m: m(0)[m.of([0])],
    "index_select nothing": lambda m: torch.index_select(m(0), 0, m.of([0])),
    "embedding in nothing": lambda m: F.embedding(m.of([0]), m(0, 3)),
    "inf norm of nothing": lambda m: torch.linalg.vector_norm(m(0), float("inf")),
    "fft of nothing": lambda m: torch.fft.fft(m(0)),
    "avg_pool of no volume": lambda m: F.avg_pool3d(m(1, 1, 0, 4, 4), 2, padding=1),
    "grid_sample of no volume": lambda m: F.grid_sample(
        m(1, 1, 0, 2, 2), m(1, 2, 2, 2, 3), align_corners=False
    ),
    "unique rows of nothing": lambda m: torch.unique(m(3, 0), dim=0),
    "unique rows of no rows": lambda m: torch.unique(m(0, 0), dim=0),
    "lstsq of nothing": lambda m: torch.linalg.lstsq(m(0, 3), m(3, 3)),
    "norm of nothing": lambda m: torch.linalg.vector_norm(m(0), -0.5),
    "max_pool of no channels": lambda m: F.max_pool2d(m(1, 0, 4, 4), 2),
    "avg_pool of no channels": lambda m: F.avg_pool2d(m(1, 0, 4, 4), 2),
    "max_pool of nothing": lambda m: F.max_pool2d(m(1, 1, 0, 4), 1),
    "conv of nothing": lambda m: F.conv2d(m(1, 1, 0, 4), m(1, 1, 1, 1)),
    "reflect nothing": lambda m: F.pad(m(1, 1, 0), (1, 1), mode="reflect"),
    "interpolate nothing": lambda m: F.interpolate(m(1, 1, 0), size=3),
    "histc of one": lambda m: torch.histc(m(3), -1),
}

SIZES: dict[str, Case] = {
    **{
        f"{name} negative": lambda m, name=name: getattr(torch, name)(-1, device=m.device)
        for name in names("zeros ones empty rand randn eye randperm")
    },
    "full negative": lambda m: torch.full((-1,), 0.0, device=m.device),
    "zeros two": lambda m: torch.zeros(2, -3, device=m.device),
    "new_zeros": lambda m: m(2).new_zeros(-1),
    "new_full": lambda m: m(2).new_full((2, -1), 1.0),
    "empty_strided": lambda m: torch.empty_strided((2,), (-1,), device=m.device),
    "empty_strided lengths": lambda m: torch.empty_strided((2, 2), (1,), device=m.device),
    "randint order": lambda m: torch.randint(3, 3, (2,), device=m.device),
    "randint size": lambda m: torch.randint(0, 3, (-2,), device=m.device),
    "arange step": lambda m: torch.arange(0, 5, 0, device=m.device),
    "arange sign": lambda m: torch.arange(0, 5, -1, device=m.device),
    "arange infinite": lambda m: torch.arange(0, float("inf"), device=m.device),
    "arange nan": lambda m: torch.arange(float("nan"), 2, device=m.device),
    "linspace steps": lambda m: torch.linspace(0, 1, -1, device=m.device),
    "logspace steps": lambda m: torch.logspace(0, 1, -1, device=m.device),
    "range sign": lambda m: torch.range(0, 5, -1, device=m.device),
    "linspace tensor": lambda m: torch.linspace(m(2), 1, 3, device=m.device),
    "eye second": lambda m: torch.eye(2, -1, device=m.device),
    "tril_indices": lambda m: torch.tril_indices(-1, 2, device=m.device),
    "triu_indices": lambda m: torch.triu_indices(2, -2, device=m.device),
    "kaiser_window": lambda m: torch.kaiser_window(-1, device=m.device),
    "kaiser_window dtype": lambda m: torch.kaiser_window(3, dtype=torch.int64, device=m.device),
    "hann_window": lambda m: torch.hann_window(-1, device=m.device),
    "pad odd": lambda m: F.pad(m(2), (1,)),
    "pad many": lambda m: F.pad(m(2), (1, 1, 1, 1)),
    "pad negative": lambda m: F.pad(m(2), (-2, -1)),
    "pad reflect": lambda m: F.pad(m(1, 2), (2, 2), mode="reflect"),
    "pad reflect 2d": lambda m: F.pad(m(1, 1, 2, 2), (1, 1, 2, 2), mode="reflect"),
    "pad circular": lambda m: F.pad(m(1, 1, 2), (3, 3), mode="circular"),
    "pad replicate rank": lambda m: F.pad(m(2), (1, 1), mode="replicate"),
    "pad mode": lambda m: F.pad(m(1, 2), (1, 1), mode="mirror"),
    "full bool dtype": lambda m: torch.full((2,), 1j, dtype=torch.float32, device=m.device),
    "vander negative": lambda m: torch.vander(m(2), -1),
    "combinations": lambda m: torch.combinations(m(2, 2)),
}
