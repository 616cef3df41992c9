"""Calls with wrong dtypes, indices and targets, for `test_errors.py` (see `bad_shapes.py`)."""

import torch
import torch.nn.functional as F

from calque.ops.table.helpers import names
from tests.device.bad_shapes import Case

DTYPES: dict[str, Case] = {
    **{
        f"{name} of integers": lambda m, name=name: getattr(F, name)(m.i(2, 4))
        for name in names(
            "gelu silu mish elu selu celu softplus logsigmoid hardswish hardsigmoid glu "
            "leaky_relu softsign tanhshrink hardshrink softshrink relu6 rrelu dropout "
            "alpha_dropout feature_alpha_dropout"
        )
    },
    **{
        f"{name} of bools": lambda m, name=name: getattr(torch, name)(m.b(3))
        for name in names("neg relu cumsum_ sort frac floor ceil round trunc sign abs positive")
        if hasattr(torch, name)
    },
    **{
        f"{name} of complex": lambda m, name=name: getattr(torch, name)(m.c(3))
        for name in names(
            "relu floor ceil round trunc frac sign max min argmax sort median mode isposinf erf "
            "lgamma erfinv digamma nanmean nansum cummax amax topk aminmax signbit logit i0 "
            "bucketize deg2rad fix msort nanmedian isneginf"
        )
        if name not in ("topk", "bucketize")
    },
    **{
        f"{name} of integers, no promotion": lambda m, name=name: getattr(torch, name)(m.i(2, 2))
        for name in names("mean std var logcumsumexp nanmean bernoulli inverse")
    },
    **{
        f"{name} of floats": lambda m, name=name: getattr(torch, name)(m(3), m(3))
        for name in names(
            "bitwise_and bitwise_or bitwise_xor gcd lcm bitwise_left_shift bitwise_right_shift"
        )
    },
    **{
        f"{name} of complex pairs": lambda m, name=name: getattr(torch, name)(m.c(3), m.c(3))
        for name in names(
            "lt gt le ge maximum minimum fmax fmin atan2 fmod remainder floor_divide hypot gcd "
            "logaddexp heaviside nextafter copysign xlogy"
        )
    },
    **{
        f"{name} of integers": lambda m, name=name: getattr(torch.linalg, name)(m.i(2, 2))
        for name in names(
            "inv det slogdet eigh eig svd qr cholesky norm vector_norm matrix_exp pinv lu cond "
            "matrix_rank"
        )
    },
    **{
        f"{name} in {dtype}": lambda m, name=name, dtype=dtype: getattr(torch.linalg, name)(
            m(2, 2).to(dtype)
        )
        for name in names(
            "inv det slogdet eigh eig svd qr cholesky cholesky_ex lu lu_factor cond svdvals"
        )
        for dtype in (torch.float16, torch.bfloat16)
    },
    "lstsq in half precision": lambda m: torch.linalg.lstsq(m(2, 2).half(), m(2, 2).half()),
    "solve in half precision": lambda m: torch.linalg.solve(m(2, 2).half(), m(2, 2).half()),
    "ormqr in half precision": lambda m: torch.ormqr(m(2, 2).half(), m(2).half(), m(2, 2).half()),
    "gamma of integers": lambda m: torch.distributions.Gamma(m.i(2) + 5, m.i(2) + 5).sample(),
    "Dirichlet of integers": lambda m: torch.distributions.Dirichlet(m.i(2) + 5).sample(),
    "bitwise_not": lambda m: torch.bitwise_not(m(2)),
    "invert": lambda m: ~m(2),
    "sub bools": lambda m: m.b(2) - m.b(2),
    "sub bool and float": lambda m: m.b(2) - m(2),
    "rsub bool": lambda m: 1 - m.b(2),
    "sub bool number": lambda m: m.b(2) - True,
    "sub_ bools": lambda m: m.b(2).sub_(m.b(2)),
    "add alpha float": lambda m: torch.add(m.i(2), m.i(2), alpha=1.5),
    "add alpha bool": lambda m: torch.add(m(2), m(2), alpha=True),
    "sub alpha float": lambda m: torch.sub(m.i(2), m.i(2), alpha=0.5),
    "add alpha complex": lambda m: torch.add(m(2), m(2), alpha=1j),
    "negative powers": lambda m: m.i(2) ** -1,
    "softmax": lambda m: torch.softmax(m.i(2), 0),
    "log_softmax": lambda m: torch.log_softmax(m.i(2), 0),
    "softmax bool": lambda m: torch.softmax(m.b(2), 0),
    "layer_norm": lambda m: F.layer_norm(m.i(2, 3), (3,)),
    "group_norm": lambda m: F.group_norm(m.i(2, 4, 3), 2),
    "batch_norm": lambda m: F.batch_norm(m.i(2, 3), m(3), m(3)),
    "instance_norm": lambda m: F.instance_norm(m.i(2, 3, 4)),
    "rms_norm": lambda m: F.rms_norm(m.i(2, 3), (3,)),
    "layer_norm mixed": lambda m: F.layer_norm(m(2, 3), (3,), m.d(3), m.d(3)),
    "batch_norm mixed": lambda m: F.batch_norm(m(2, 3), m.d(3), m.d(3)),
    "mm mixed": lambda m: m(2, 3) @ m.d(3, 2),
    "mm int": lambda m: m(2, 3) @ m.i(3, 2),
    "mm half": lambda m: m(2, 3) @ m.h(3, 2),
    "mm bool": lambda m: m.b(2, 3) @ m.b(3, 2),
    "mv mixed": lambda m: m(2, 3) @ m.d(3),
    "dot mixed": lambda m: torch.dot(m(3), m.d(3)),
    "dot bool": lambda m: torch.dot(m.b(3), m.b(3)),
    "bmm mixed": lambda m: torch.bmm(m(2, 3, 3), m.d(2, 3, 3)),
    "addmm mixed": lambda m: torch.addmm(m.d(2, 2), m(2, 3), m(3, 2)),
    "addmm mixed product": lambda m: torch.addmm(m(2, 2), m(2, 3), m.d(3, 2)),
    "baddbmm mixed": lambda m: torch.baddbmm(m.d(2, 3, 3), m(2, 3, 3), m(2, 3, 3)),
    "addmv mixed": lambda m: torch.addmv(m.d(2), m(2, 3), m(3)),
    "linear mixed": lambda m: F.linear(m(2, 3), m.d(4, 3)),
    "linear bias mixed": lambda m: F.linear(m(2, 3), m(4, 3), m.d(4)),
    "linear half": lambda m: F.linear(m.h(2, 3), m(4, 3)),
    "linear int": lambda m: F.linear(m.i(2, 3), m(4, 3)),
    "bilinear mixed": lambda m: F.bilinear(m(2, 3), m.d(2, 3), m(2, 3, 3)),
    "conv mixed": lambda m: F.conv2d(m(1, 1, 3, 3), m.d(1, 1, 2, 2)),
    "conv bias mixed": lambda m: F.conv2d(m(1, 1, 3, 3), m(1, 1, 2, 2), m.d(1)),
    "conv bool": lambda m: F.conv2d(m.b(1, 1, 3, 3), m.b(1, 1, 2, 2)),
    "conv int input": lambda m: F.conv1d(m.i(1, 1, 3), m(1, 1, 2)),
    "cdist int": lambda m: torch.cdist(m.i(2, 3), m.i(2, 3)),
    "lerp mixed": lambda m: torch.lerp(m(2), m.d(2), 0.5),
    "lerp int": lambda m: torch.lerp(m.i(2), m.i(2), 0.5),
    "complex mixed": lambda m: torch.complex(m(2), m.d(2)),
    "complex int": lambda m: torch.complex(m.i(2), m.i(2)),
    "polar int": lambda m: torch.polar(m.i(2), m.i(2)),
    "polar mixed": lambda m: torch.polar(m(2), m.d(2)),
    "view_as_complex int": lambda m: torch.view_as_complex(m.i(2, 2)),
    "imag real": lambda m: m(2).imag,
    "masked_fill mask": lambda m: m(2).masked_fill(m.i(2), 0.0),
    "masked_fill value": lambda m: m.i(2).masked_fill(m.b(2), 1.5),
    "masked_fill_ value": lambda m: m.i(2).masked_fill_(m.b(2), 1.5),
    "masked_fill tensor": lambda m: m.i(2).masked_fill(m.b(2), m()),
    "masked_select mask": lambda m: m(2).masked_select(m.i(2)),
    "masked_scatter source": lambda m: m(2).masked_scatter(m.b(2), m.d(2)),
    "masked_scatter mask": lambda m: m(2).masked_scatter(m.i(2), m(2)),
    "where condition": lambda m: torch.where(m.i(2), m(2), m(2)),
    "where float condition": lambda m: torch.where(m(2), m(2), m(2)),
    "multinomial int": lambda m: torch.multinomial(m.i(2), 1),
    "normal int": lambda m: m.i(2).normal_(),
    "uniform int": lambda m: m.i(2).uniform_(),
    "exponential int": lambda m: m.i(2).exponential_(),
    "rand int": lambda m: torch.rand(2, dtype=torch.int64, device=m.device),
    "randn int": lambda m: torch.randn(2, dtype=torch.int64, device=m.device),
    "rand_like int": lambda m: torch.rand_like(m.i(2)),
    "bincount weights": lambda m: torch.bincount(m(3)),
    "quantile int": lambda m: torch.quantile(m.i(3), 0.5),
    "quantile mixed": lambda m: torch.quantile(m(3), m.d(2).zero_()),
    "searchsorted mixed": lambda m: torch.searchsorted(m(3), m.d(2)),
    "trapezoid": lambda m: torch.linalg.cross(m(3), m.i(2)),
    "sum dtype": lambda m: torch.mean(m(2), dtype=torch.int64),
    "vector_norm dtype": lambda m: torch.linalg.vector_norm(m(2), dtype=torch.int64),
    "fft half": lambda m: torch.fft.rfft(m.c(3)),
    "grid mixed": lambda m: F.grid_sample(m(1, 1, 2, 2), m.d(1, 2, 2, 2), align_corners=False),
    "interpolate int": lambda m: F.interpolate(m.i(1, 1, 3), size=4, mode="linear"),
    "avg_pool int": lambda m: F.avg_pool2d(m.b(1, 1, 4, 4), 2),
    "adaptive_avg_pool int": lambda m: F.adaptive_avg_pool2d(m.i(1, 1, 4, 4), 2),
    "max_pool bool": lambda m: F.max_pool2d(m.b(1, 1, 4, 4), 2),
    "attention mixed": lambda m: F.scaled_dot_product_attention(
        m(1, 1, 2, 3), m.d(1, 1, 2, 3), m(1, 1, 2, 3)
    ),
    "requires_grad int": lambda m: m.i(2).requires_grad_(),
    "unknown index dtype": lambda m: m(3)[m(2)],
}

IN_PLACE: dict[str, Case] = {
    **{
        f"int {name} float": lambda m, name=name: getattr(m.i(3), name)(1.5)
        for name in names("add_ sub_ mul_ pow_ fmod_ remainder_ clamp_ clamp_min_ atan2_")
        if name != "atan2_"
    },
    **{
        f"int {name} tensor": lambda m, name=name: getattr(m.i(3), name)(m(3))
        for name in names("add_ sub_ mul_ div_ pow_ fmod_ copysign_ hypot_ atan2_ xlogy_ fmax_")
        if hasattr(torch.Tensor, name)
    },
    **{
        f"int {name}": lambda m, name=name: getattr(m.i(3), name)()
        for name in names(
            "sin_ exp_ sqrt_ sigmoid_ tanh_ log_ rsqrt_ reciprocal_ erf_ expm1_ acos_ logit_ "
            "floor_ ceil_ round_ trunc_ frac_ neg_ abs_ sinh_ lgamma_ digamma_ sinc_"
        )
    },
    "bool += int": lambda m: m.b(2).add_(1),
    "bool *= float": lambda m: m.b(2).mul_(1.5),
    "float += complex": lambda m: m(2).add_(m.c(2)),
    "int /= int": lambda m: m.i(2).div_(2),
    "int true divide": lambda m: m.i(2).true_divide_(m.i(2)),
    "expanded add_": lambda m: m(1).expand(3).add_(1),
    "expanded fill_": lambda m: m(1).expand(3).fill_(1),
    "expanded zero_": lambda m: m(1).expand(3).zero_(),
    "expanded copy_": lambda m: m(1).expand(3).copy_(m(3)),
    "expanded setitem": lambda m: m(1).expand(3).__setitem__(slice(None), m(3)),
    "expanded setitem number": lambda m: m(1).expand(3).__setitem__(slice(0, 2), 1.0),
    "expanded relu_": lambda m: m(1).expand(3).relu_(),
    "expanded normal_": lambda m: m(1).expand(3).normal_(),
    "expanded uniform_": lambda m: m(1).expand(3).uniform_(),
    "expanded bernoulli_": lambda m: m(1).expand(3).bernoulli_(0.5),
    "expanded random_": lambda m: m(1).expand(3).random_(),
    "expanded masked_fill_": lambda m: m(1).expand(3).masked_fill_(m.b(3), 1.0),
    "expanded masked_scatter_": lambda m: m(1).expand(3).masked_scatter_(m.b(3), m(3)),
    "expanded scatter_": lambda m: m(1).expand(3).scatter_(0, m.of([0]), m(1)),
    "expanded index_add_": lambda m: m(1).expand(3).index_add_(0, m.of([0]), m(1)),
    "expanded index_copy_": lambda m: m(1).expand(3).index_copy_(0, m.of([0]), m(1)),
    "expanded index_fill_": lambda m: m(1).expand(3).index_fill_(0, m.of([0]), 1.0),
    "expanded index_put_": lambda m: m(1).expand(3).index_put_((m.of([0]),), m(1)),
    "expanded put_": lambda m: m(1).expand(3).put_(m.of([0]), m(1)),
    "expanded addmm_": lambda m: m(1, 1).expand(2, 2).addmm_(m(2, 2), m(2, 2)),
    "expanded tril_": lambda m: m(1, 1).expand(2, 2).tril_(),
    "expanded cumsum_": lambda m: m(1).expand(3).cumsum_(0),
    "expanded clamp_": lambda m: m(1).expand(3).clamp_(0),
    "expanded lerp_": lambda m: m(1).expand(3).lerp_(m(3), 0.5),
    "expanded addcmul_": lambda m: m(1).expand(3).addcmul_(m(3), m(3)),
    "expanded fill_diagonal_": lambda m: m(1, 1).expand(2, 2).fill_diagonal_(1.0),
    "expanded exponential_": lambda m: m(1).expand(3).exponential_(),
    "expanded foreach": lambda m: torch._foreach_add_([m(1).expand(3)], 1.0),
    "overlapping add_": lambda m: (lambda x: x[1:].add_(x[:-1]))(m(4)),
    "overlapping mul_": lambda m: (lambda x: x[:-1].mul_(x[1:]))(m(4)),
    "overlapping copy_": lambda m: (lambda x: x[1:].copy_(x[:-1]))(m(4)),
    "overlapping sub_ transposed": lambda m: (lambda x: x.sub_(x.t()))(m(3, 3)),
    "overlapping addcmul_": lambda m: (lambda x: x[1:].addcmul_(x[:-1], x[1:]))(m(4)),
    "overlapping lerp_": lambda m: (lambda x: x[1:].lerp_(x[:-1], 0.5))(m(4)),
    "overlapping setitem": lambda m: (lambda x: x.__setitem__(slice(1, 4), x[:-1]))(m(4)),
    "overlapping masked_fill_": lambda m: (lambda b: b[1:].masked_fill_(b[:-1], True))(m.b(4)),
    "overlapping scatter_": lambda m: (lambda x: x.scatter_(0, m.of([0, 1]), x[:2]))(m(4)),
    "overlapping scatter_add_": lambda m: (lambda x: x.scatter_add_(0, m.of([0, 1]), x[1:]))(m(4)),
    "overlapping index_add_": lambda m: (lambda x: x.index_add_(0, m.of([0, 1]), x[1:3]))(m(4)),
    "overlapping index_copy_": lambda m: (lambda x: x.index_copy_(0, m.of([0, 1]), x[1:3]))(m(4)),
    "overlapping index_put_": lambda m: (lambda x: x.index_put_((m.of([0, 1]),), x[1:3]))(m(4)),
    "overlapping masked_scatter_": lambda m: (lambda x: x.masked_scatter_(m.b(4), x))(m(4)),
    "overlapping eq_": lambda m: (lambda x: x[1:].eq_(x[:-1]))(m(4)),
    "overlapping pow_": lambda m: (lambda x: x[1:].pow_(x[:-1]))(m(4)),
    "overlapping clamp_": lambda m: (lambda x: x[1:].clamp_(x[:-1]))(m(4)),
    "overlapping where": lambda m: (lambda x: torch.where(m.b(3), x[1:], 0.0, out=x[:-1]))(m(4)),
    "overlapping addmm_": lambda m: (lambda x: x[:2].addmm_(x[1:], m(2, 2)))(m(3, 2)),
    "overlapping foreach": lambda m: (lambda x: torch._foreach_add_([x[1:]], [x[:-1]]))(m(4)),
    "leaf": lambda m: m(2).requires_grad_().add_(1),
    "leaf fill_": lambda m: m(2).requires_grad_().zero_(),
    "leaf view": lambda m: m(2).requires_grad_()[0].add_(1),
    "leaf setitem": lambda m: m(2).requires_grad_().__setitem__(0, 1.0),
    "leaf out": lambda m: torch.add(m(2), 1, out=m(2).requires_grad_()),
    "inference": lambda m: m.inference(2).requires_grad_().add_(1),
    "changed after saving": lambda m: m.saved(),
    "backward twice": lambda m: m.twice(),
    "backward of many": lambda m: (m(2).requires_grad_() * 2).backward(),
    "backward of none": lambda m: m(1).sum().backward(),
    "backward shape": lambda m: (m(2).requires_grad_() * 2).backward(m(3)),
    "grad of unused": lambda m: torch.autograd.grad(m().requires_grad_() * 2, m().requires_grad_()),
    "numpy of grad": lambda m: m(2).requires_grad_().cpu().numpy(),
}

INDICES: dict[str, Case] = {
    "index": lambda m: m(3)[m.of([3])],
    "index negative": lambda m: m(3)[m.of([-4])],
    "index second": lambda m: m(2, 3)[:, m.of([0, 3])],
    "index shapes": lambda m: m(3, 3)[m.of([0, 1]), m.of([0, 1, 2])],
    "index mask shape": lambda m: m(3)[m.of([True, False])],
    "index too many": lambda m: m(3)[m.of([0]), m.of([0])],
    "index_put": lambda m: m(3).index_put_((m.of([3]),), m(1)),
    "index_put shapes": lambda m: m(3).index_put_((m.of([0, 1]),), m(3)),
    "index_put dtype": lambda m: m(3).index_put_((m.of([0]),), m.d(1)),
    "index_put accumulate": lambda m: m(3).index_put_((m.of([5]),), m(1), accumulate=True),
    "setitem": lambda m: m(3).__setitem__(m.of([3]), 1.0),
    "setitem int": lambda m: m(3).__setitem__(3, 1.0),
    "gather": lambda m: m(3).gather(0, m.of([3])),
    "gather negative": lambda m: m(3).gather(0, m.of([-1])),
    "gather ranks": lambda m: m(3).gather(0, m.of([[0]])),
    "gather sizes": lambda m: m(2, 3).gather(0, m.of([[0, 0, 0, 0]])),
    "gather dtype": lambda m: m(3).gather(0, m(2)),
    "gather dim": lambda m: m(3).gather(1, m.of([0])),
    "scatter": lambda m: m(3).scatter(0, m.of([3]), m(1)),
    "scatter value": lambda m: m(3).scatter(0, m.of([3]), 1.0),
    "scatter negative": lambda m: m(3).scatter_(0, m.of([-1]), m(1)),
    "scatter ranks": lambda m: m(3).scatter(0, m.of([[0]]), m(1)),
    "scatter sizes": lambda m: m(3).scatter(0, m.of([0, 1]), m(1)),
    "scatter dtype": lambda m: m(3).scatter(0, m.of([0]), m.d(1)),
    "scatter index dtype": lambda m: m(3).scatter(0, m(1), m(1)),
    "scatter dim": lambda m: m(3).scatter(1, m.of([0]), m(1)),
    "scatter reduce": lambda m: m(3).scatter(0, m.of([0]), m(1), reduce="mean"),
    "scatter_add": lambda m: m(3).scatter_add(0, m.of([3]), m(1)),
    "scatter_add dtype": lambda m: m(3).scatter_add(0, m.of([0]), m.d(1)),
    "scatter_add sizes": lambda m: m(3).scatter_add(0, m.of([0, 0]), m(1)),
    "scatter_add self": lambda m: m(3, 2).scatter_add(0, m.of([[0, 0, 0]]), m(1, 3)),
    "scatter_reduce": lambda m: m(3).scatter_reduce(0, m.of([3]), m(1), "sum"),
    "scatter_reduce name": lambda m: m(3).scatter_reduce(0, m.of([0]), m(1), "add"),
    "scatter_reduce dtype": lambda m: m(3).scatter_reduce(0, m.of([0]), m.d(1), "sum"),
    "index_select": lambda m: m(3).index_select(0, m.of([3])),
    "index_select negative": lambda m: m(3).index_select(0, m.of([-1])),
    "index_select 2d": lambda m: m(3).index_select(0, m.of([[0]])),
    "index_select dtype": lambda m: m(3).index_select(0, m(1)),
    "index_select dim": lambda m: m(3).index_select(1, m.of([0])),
    "index_add": lambda m: m(3).index_add(0, m.of([3]), m(1)),
    "index_add row": lambda m: m(3, 2).index_add(0, m.of([3]), m(1, 2)),
    "scatter index short": lambda m: m(3).scatter(0, m.i(1).short(), 1.0),
    "gather 0d index dtype": lambda m: m().gather(0, m.of(0).short()),
    "index_fill index dtype": lambda m: m(3).index_fill(0, m.i(1).int(), 1.0),
    "cumsum out bool": lambda m: torch.cumsum(m(3), 0, out=m.b(3)),
    "any out": lambda m: torch.any(m(3, 2), 0, out=m(2)),
    "index of int16": lambda m: m(3)[m.i(2).short()],
    "index_add sizes": lambda m: m(3).index_add(0, m.of([0, 1]), m(1)),
    "index_add shapes": lambda m: m(3, 2).index_add(0, m.of([0]), m(1, 3)),
    "index_add dtype": lambda m: m(3).index_add(0, m.of([0]), m.d(1)),
    "index_add index dtype": lambda m: m(3).index_add(0, m(1), m(1)),
    "index_add dim": lambda m: m(3).index_add(1, m.of([0]), m(1)),
    "index_add index 2d": lambda m: m(3).index_add(0, m.of([[0]]), m(1)),
    "index_copy": lambda m: m(3).index_copy(0, m.of([3]), m(1)),
    "index_copy sizes": lambda m: m(3).index_copy(0, m.of([0, 1]), m(1)),
    "index_copy dtype": lambda m: m(3).index_copy(0, m.of([0]), m.d(1)),
    "index_copy shapes": lambda m: m(3, 2).index_copy(0, m.of([0]), m(1, 3)),
    "index_copy index dtype": lambda m: m(3).index_copy(0, m(1), m(1)),
    "index_fill": lambda m: m(3).index_fill(0, m.of([3]), 1.0),
    "index_fill dtype": lambda m: m(3).index_fill(0, m(1), 1.0),
    "index_fill value": lambda m: m(3).index_fill(0, m.of([0]), m(2)),
    "index_fill complex": lambda m: m(3).index_fill(0, m.of([0]), 1j),
    "index_reduce": lambda m: m(3).index_reduce(0, m.of([3]), m(1), "prod"),
    "index_reduce name": lambda m: m(3).index_reduce(0, m.of([0]), m(1), "sum"),
    "take": lambda m: m(3).take(m.of([3])),
    "take dtype": lambda m: m(3).take(m(1)),
    "put": lambda m: m(3).put(m.of([3]), m(1)),
    "put sizes": lambda m: m(3).put(m.of([0, 1]), m(1)),
    "put dtype": lambda m: m(3).put(m.of([0]), m.d(1)),
    "put index dtype": lambda m: m(3).put(m(1), m(1)),
    "take_along_dim": lambda m: torch.take_along_dim(m(3), m.of([3]), 0),
    "take_along_dim ranks": lambda m: torch.take_along_dim(m(3), m.of([[0]]), 0),
    "take_along_dim dtype": lambda m: torch.take_along_dim(m(3), m(1), 0),
    "select_scatter": lambda m: torch.select_scatter(m(3, 2), m(3), 0, 0),
    "select_scatter index": lambda m: torch.select_scatter(m(3, 2), m(2), 0, 3),
    "slice_scatter": lambda m: torch.slice_scatter(m(4), m(3), 0, 0, 2),
    "diagonal_scatter": lambda m: torch.diagonal_scatter(m(3, 3), m(2)),
    "embedding": lambda m: F.embedding(m.of([3]), m(3, 2)),
    "embedding negative": lambda m: F.embedding(m.of([-1]), m(3, 2)),
    "embedding dtype": lambda m: F.embedding(m(2), m(3, 2)),
    "embedding weight": lambda m: F.embedding(m.of([0]), m(3)),
    "embedding padding": lambda m: F.embedding(m.of([0]), m(3, 2), padding_idx=3),
    "embedding_bag": lambda m: F.embedding_bag(m.of([[3]]), m(3, 2)),
    "embedding_bag offsets": lambda m: F.embedding_bag(m.of([0, 1]), m(3, 2), m.of([1])),
    "embedding_bag offset order": lambda m: F.embedding_bag(m.of([0, 1]), m(3, 2), m.of([0, 5])),
    "embedding_bag none": lambda m: F.embedding_bag(m.of([0, 1]), m(3, 2)),
    "embedding_bag mode": lambda m: F.embedding_bag(m.of([[0]]), m(3, 2), mode="prod"),
    "embedding_bag weights": lambda m: F.embedding_bag(
        m.of([[0]]), m(3, 2), mode="mean", per_sample_weights=m(1, 1)
    ),
    "tril offset": lambda m: torch.tril(m(2, 2), "a"),
    "scatter reduction 2": lambda m: m.i(3).scatter_reduce(0, m.of([0]), m(1), "mean"),
}

LOSSES: dict[str, Case] = {
    **{
        f"{name} reduction": lambda m, name=name: getattr(F, name)(m(2), m(2), reduction="avg")
        for name in names(
            "mse_loss l1_loss smooth_l1_loss huber_loss kl_div binary_cross_entropy "
            "soft_margin_loss binary_cross_entropy_with_logits poisson_nll_loss "
            "hinge_embedding_loss"
        )
    },
    **{
        f"{name} shapes": lambda m, name=name: getattr(F, name)(m(2, 3), m(4))
        for name in names(
            "mse_loss l1_loss smooth_l1_loss huber_loss kl_div binary_cross_entropy "
            "soft_margin_loss binary_cross_entropy_with_logits poisson_nll_loss"
        )
    },
    **{
        f"{name} integers": lambda m, name=name: getattr(F, name)(m.i(2), m.i(2))
        for name in names("mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy")
    },
    **{
        f"{name} float and integer": lambda m, name=name: getattr(F, name)(m(2), m.i(2))
        for name in names(
            "mse_loss smooth_l1_loss huber_loss binary_cross_entropy "
            "binary_cross_entropy_with_logits kl_div soft_margin_loss"
        )
    },
    "bce range": lambda m: F.binary_cross_entropy(m.of([1.5, 0.2]), m(2)),
    "bce weight": lambda m: F.binary_cross_entropy(m(2).sigmoid(), m(2), weight=m(3)),
    "smooth beta": lambda m: F.smooth_l1_loss(m(2), m(2), beta=-1.0),
    "huber delta": lambda m: F.huber_loss(m(2), m(2), delta=0.0),
    "nll target": lambda m: F.nll_loss(m(2, 3), m.of([0, 3])),
    "nll negative": lambda m: F.nll_loss(m(2, 3), m.of([0, -1])),
    "nll sizes": lambda m: F.nll_loss(m(2, 3), m.of([0])),
    "nll dtype": lambda m: F.nll_loss(m(2, 3), m(2)),
    "nll input": lambda m: F.nll_loss(m.i(2, 3), m.of([0, 1])),
    "nll weight": lambda m: F.nll_loss(m(2, 3), m.of([0, 1]), weight=m(2)),
    "nll weight dtype": lambda m: F.nll_loss(m(2, 3), m.of([0, 1]), weight=m.d(3)),
    "nll 0d": lambda m: F.nll_loss(m(), m.of(0)),
    "nll int32": lambda m: F.nll_loss(m(2, 3), m.of([0, 1]).int()),
    "nll2d shapes": lambda m: F.nll_loss(m(2, 3, 4, 4), m.i(2, 4, 3)),
    "nll2d target": lambda m: F.nll_loss(m(1, 2, 1, 1), m.of([[[2]]])),
    "nll2d dtype": lambda m: F.nll_loss(m(1, 2, 1, 1), m(1, 1, 1)),
    "cross_entropy target": lambda m: F.cross_entropy(m(2, 3), m.of([0, 3])),
    "cross_entropy negative": lambda m: F.cross_entropy(m(2, 3), m.of([-1, 1])),
    "cross_entropy sizes": lambda m: F.cross_entropy(m(2, 3), m.of([0, 1, 1])),
    "cross_entropy 1d float": lambda m: F.cross_entropy(m(2, 3), m(2)),
    "cross_entropy smoothing": lambda m: F.cross_entropy(
        m(2, 3), m.of([0, 1]), label_smoothing=2.0
    ),
    "cross_entropy smooth target": lambda m: F.cross_entropy(
        m(2, 3), m.of([0, 3]), label_smoothing=0.1
    ),
    "cross_entropy weight": lambda m: F.cross_entropy(m(2, 3), m.of([0, 1]), weight=m(2)),
    "cross_entropy reduction": lambda m: F.cross_entropy(m(2, 3), m.of([0, 1]), reduction="x"),
    "cross_entropy probabilities": lambda m: F.cross_entropy(m(2, 3), m(2, 4)),
    "cross_entropy integers": lambda m: F.cross_entropy(m.i(2, 3), m.of([0, 1])),
    "multi_margin target": lambda m: F.multi_margin_loss(m(2, 3), m.of([0, 3])),
    "softshrink above the dtype": lambda m: F.softshrink(m(2, 3).half(), 1e6),
    "elu_ of a negative slope": lambda m: _gradient(F.elu_, m(2, 3), -2.0),
    "celu_ of a negative slope": lambda m: _gradient(torch.celu_, m(2, 3), -2.0),
    "leaky_relu_ of a negative slope": lambda m: _gradient(F.leaky_relu_, m(2, 3), -2.0),
    "nll_loss of several targets": lambda m: F.nll_loss(m(2, 3), m.of([[0, 1], [1, 0]])),
    "nll_loss of a vector": lambda m: F.nll_loss(m(3), m.of([0, 1])),
    "multi_margin p": lambda m: F.multi_margin_loss(m(2, 3), m.of([0, 1]), p=3),
    "multilabel target": lambda m: F.multilabel_margin_loss(m(3), m.of([0, 3, -1])),
    "multilabel shapes": lambda m: F.multilabel_margin_loss(m(3), m.of([0, 1])),
    "ctc lengths": lambda m: F.ctc_loss(m(5, 2, 3), m.i(2, 2), m.of([5]), m.of([2, 2])),
    "ctc dtype": lambda m: F.ctc_loss(m.i(5, 2, 3), m.i(2, 2), m.of([5, 5]), m.of([2, 2])),
    "ctc blank": lambda m: F.ctc_loss(m(5, 2, 3), m.i(2, 2), m.of([5, 5]), m.of([2, 2]), blank=3),
    "ctc steps": lambda m: F.ctc_loss(m(5, 2, 3), m.i(2, 2), m.of([5, 6]), m.of([2, 2])),
    "ctc no steps": lambda m: F.ctc_loss(m(5, 2, 3), m.i(2, 2), (5, -1), (2, 2)),
    "ctc labels": lambda m: F.ctc_loss(m(5, 2, 3), m.i(2, 2), m.of([5, 5]), m.of([2, 3])),
    "ctc row": lambda m: F.ctc_loss(m(5, 2, 3), m.i(5), m.of([5, 5]), m.of([2, 2])),
    "ctc batch": lambda m: F.ctc_loss(m(5, 2, 3), m.i(3, 2), m.of([5, 5]), m.of([2, 2])),
    "ctc floats": lambda m: F.ctc_loss(m(5, 2, 3), m.i(2, 2), m.of([5.0, 5]), m.of([2, 2])),
    "cosine target": lambda m: F.cosine_embedding_loss(m(2, 3), m(2, 3), m(3)),
    "margin_ranking": lambda m: F.margin_ranking_loss(m(2), m(2), m(2, 1)),
    "triplet": lambda m: F.triplet_margin_loss(m(2, 3), m(2, 3), m(2)),
    "gaussian_nll": lambda m: F.gaussian_nll_loss(m(2), m(2), m.of([-1.0, 1.0])),
}


def _gradient(function, x, slope):
    result = function(x.requires_grad_().clone(), slope)
    result.sum().backward()
    return x.grad
