"""Calls with wrong dtypes, indices and options, for `test_errors.py` (see `bad_shapes.py`)."""

import torch
import torch.nn.functional as F

from calque.ops.common import names
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
    "multi_margin p": lambda m: F.multi_margin_loss(m(2, 3), m.of([0, 1]), p=3),
    "multilabel target": lambda m: F.multilabel_margin_loss(m(3), m.of([0, 3, -1])),
    "multilabel shapes": lambda m: F.multilabel_margin_loss(m(3), m.of([0, 1])),
    "ctc lengths": lambda m: F.ctc_loss(m(5, 2, 3), m.i(2, 2), m.of([5]), m.of([2, 2])),
    "ctc dtype": lambda m: F.ctc_loss(m.i(5, 2, 3), m.i(2, 2), m.of([5, 5]), m.of([2, 2])),
    "ctc blank": lambda m: F.ctc_loss(m(5, 2, 3), m.i(2, 2), m.of([5, 5]), m.of([2, 2]), blank=3),
    "cosine target": lambda m: F.cosine_embedding_loss(m(2, 3), m(2, 3), m(3)),
    "margin_ranking": lambda m: F.margin_ranking_loss(m(2), m(2), m(2, 1)),
    "triplet": lambda m: F.triplet_margin_loss(m(2, 3), m(2, 3), m(2)),
    "gaussian_nll": lambda m: F.gaussian_nll_loss(m(2), m(2), m.of([-1.0, 1.0])),
}

LAYERS: dict[str, Case] = {
    "conv channels": lambda m: F.conv2d(m(1, 2, 4, 4), m(1, 3, 2, 2)),
    "conv rank": lambda m: F.conv2d(m(4, 4), m(1, 1, 2, 2)),
    "conv weight rank": lambda m: F.conv2d(m(1, 1, 4, 4), m(1, 1, 2)),
    "conv kernel": lambda m: F.conv2d(m(1, 1, 2, 2), m(1, 1, 3, 3)),
    "conv stride": lambda m: F.conv2d(m(1, 1, 4, 4), m(1, 1, 2, 2), stride=0),
    "conv stride negative": lambda m: F.conv1d(m(1, 1, 4), m(1, 1, 2), stride=-1),
    "conv padding": lambda m: F.conv2d(m(1, 1, 4, 4), m(1, 1, 2, 2), padding=-1),
    "conv padding name": lambda m: F.conv2d(m(1, 1, 4, 4), m(1, 1, 2, 2), padding="full"),
    "conv same stride": lambda m: F.conv2d(m(1, 1, 4, 4), m(1, 1, 2, 2), None, 2, "same"),
    "conv dilation": lambda m: F.conv2d(m(1, 1, 4, 4), m(1, 1, 2, 2), dilation=0),
    "conv groups": lambda m: F.conv2d(m(1, 3, 4, 4), m(2, 1, 2, 2), groups=2),
    "conv groups zero": lambda m: F.conv2d(m(1, 2, 4, 4), m(2, 2, 2, 2), groups=0),
    "conv groups out": lambda m: F.conv2d(m(1, 4, 4, 4), m(3, 2, 2, 2), groups=2),
    "conv groups negative": lambda m: F.conv2d(m(1, 2, 4, 4), m(2, 2, 2, 2), groups=-1),
    "conv bias": lambda m: F.conv2d(m(1, 1, 4, 4), m(2, 1, 2, 2), m(3)),
    "conv bias rank": lambda m: F.conv2d(m(1, 1, 4, 4), m(2, 1, 2, 2), m(2, 1)),
    "conv stride count": lambda m: F.conv2d(m(1, 1, 4, 4), m(2, 1, 2, 2), stride=(1, 1, 1)),
    "conv dilated kernel": lambda m: F.conv1d(m(1, 1, 4), m(1, 1, 3), dilation=2),
    "conv3d channels": lambda m: F.conv3d(m(1, 2, 3, 3, 3), m(1, 1, 2, 2, 2)),
    "conv zero kernel": lambda m: F.conv1d(m(1, 1, 4), m(1, 1, 0)),
    "conv_transpose channels": lambda m: F.conv_transpose2d(m(1, 2, 4, 4), m(3, 1, 2, 2)),
    "conv_transpose output": lambda m: F.conv_transpose2d(
        m(1, 1, 4, 4), m(1, 1, 2, 2), output_padding=1
    ),
    "conv_transpose padding": lambda m: F.conv_transpose1d(m(1, 1, 2), m(1, 1, 1), padding=3),
    "conv_transpose bias": lambda m: F.conv_transpose2d(m(1, 1, 4, 4), m(1, 2, 2, 2), m(1)),
    "conv_tbc": lambda m: torch.conv_tbc(m(3, 1, 2), m(2, 3, 1), m(1)),
    **{
        f"{name} {option}": lambda m, name=name, options=options: getattr(F, name)(
            m(1, 1, 4, 4), **options
        )
        for name in ("max_pool2d", "avg_pool2d")
        for option, options in {
            "kernel zero": {"kernel_size": 0},
            "kernel large": {"kernel_size": 5},
            "kernel negative": {"kernel_size": -1},
            "stride zero": {"kernel_size": 2, "stride": 0},
            "padding": {"kernel_size": 2, "padding": 2},
            "padding negative": {"kernel_size": 2, "padding": -1},
            "kernel count": {"kernel_size": (2, 2, 2)},
        }.items()
    },
    "max_pool dilation": lambda m: F.max_pool2d(m(1, 1, 4, 4), 2, dilation=0),
    "max_pool rank": lambda m: F.max_pool2d(m(4, 4), 2),
    "max_pool1d kernel": lambda m: F.max_pool1d(m(1, 1, 4), 5),
    "max_pool1d stride": lambda m: F.max_pool1d(m(1, 1, 4), 2, stride=-1),
    "max_pool1d padding": lambda m: F.max_pool1d(m(1, 1, 4), 2, padding=2),
    "max_pool1d dilation": lambda m: F.max_pool1d(m(1, 1, 4), 2, dilation=0),
    "max_pool3d kernel": lambda m: F.max_pool3d(m(1, 1, 2, 2, 2), 3),
    "avg_pool divisor": lambda m: F.avg_pool2d(m(1, 1, 4, 4), 2, divisor_override=0),
    "avg_pool1d kernel": lambda m: F.avg_pool1d(m(1, 1, 4), 5),
    "avg_pool3d kernel": lambda m: F.avg_pool3d(m(1, 1, 2, 2, 2), 0),
    "avg_pool rank": lambda m: F.avg_pool2d(m(4, 4), 2),
    "lp_pool": lambda m: F.lp_pool2d(m(1, 1, 4, 4), 2, 0),
    "adaptive_avg rank": lambda m: F.adaptive_avg_pool2d(m(4, 4), 2),
    "adaptive_avg negative": lambda m: F.adaptive_avg_pool2d(m(1, 1, 4, 4), -1),
    "adaptive_avg count": lambda m: F.adaptive_avg_pool2d(m(1, 1, 4, 4), (2, 2, 2)),
    "adaptive_max negative": lambda m: F.adaptive_max_pool2d(m(1, 1, 4, 4), -1),
    "adaptive_max1d": lambda m: F.adaptive_max_pool1d(m(4), 2),
    "fractional": lambda m: F.fractional_max_pool2d(m(1, 1, 4, 4), 5, output_size=2),
    "max_unpool": lambda m: F.max_unpool2d(m(1, 1, 2, 2), m.i(1, 1, 2, 2) + 99, 2),
    "max_unpool shape": lambda m: F.max_unpool2d(m(1, 1, 2, 2), m.i(1, 1, 2, 3), 2),
    "batch_norm channels": lambda m: F.batch_norm(m(2, 3), m(4), m(4)),
    "batch_norm weight": lambda m: F.batch_norm(m(2, 3), m(3), m(3), weight=m(4)),
    "batch_norm training one": lambda m: F.batch_norm(m(1, 3), m(3), m(3), training=True),
    "batch_norm none": lambda m: F.batch_norm(m(2, 3), None, None),
    "batch_norm 1d": lambda m: F.batch_norm(m(3), m(3), m(3)),
    "layer_norm shape": lambda m: F.layer_norm(m(2, 3), (4,)),
    "layer_norm weight": lambda m: F.layer_norm(m(2, 3), (3,), m(4)),
    "layer_norm bias": lambda m: F.layer_norm(m(2, 3), (3,), m(3), m(4)),
    "layer_norm none": lambda m: F.layer_norm(m(2, 3), ()),
    "layer_norm rank": lambda m: F.layer_norm(m(3), (2, 3)),
    "rms_norm shape": lambda m: F.rms_norm(m(2, 3), (4,)),
    "rms_norm weight": lambda m: F.rms_norm(m(2, 3), (3,), m(4)),
    "group_norm groups": lambda m: F.group_norm(m(2, 3, 4), 2),
    "group_norm zero": lambda m: F.group_norm(m(2, 3, 4), 0),
    "group_norm weight": lambda m: F.group_norm(m(2, 4, 4), 2, m(3)),
    "group_norm rank": lambda m: F.group_norm(m(4), 2),
    "instance_norm": lambda m: F.instance_norm(m(2, 3, 1)),
    "local_response_norm": lambda m: F.local_response_norm(m(3, 3), 2),
    "dropout p": lambda m: F.dropout(m(2), 1.5),
    "dropout_ p": lambda m: torch.dropout_(m(2), -0.5, True),
    "native_dropout p": lambda m: torch.native_dropout(m(2), 2.0, True),
    "alpha_dropout p": lambda m: F.alpha_dropout(m(2), 1.5, training=True),
    "feature_dropout": lambda m: F.dropout2d(m(2, 3, 4, 4), -1.0),
    "prelu": lambda m: F.prelu(m(2, 3), m(2)),
    "prelu 0d": lambda m: F.prelu(m(), m(2)),
    "prelu mixed": lambda m: F.prelu(m(2, 3), m.d(3)),
    "softshrink": lambda m: F.softshrink(m(2), -1.0),
    "rrelu": lambda m: F.rrelu(m(2), 0.5, 0.1, training=True),
    "elu_ alpha": lambda m: torch.celu(m(2), 0.0),
    "gelu name": lambda m: F.gelu(m(2), approximate="fast"),
    "threshold_": lambda m: F.threshold(m.b(2), 1, 1),
    "interpolate none": lambda m: F.interpolate(m(1, 1, 2)),
    "interpolate size": lambda m: F.interpolate(m(1, 1, 2), size=0),
    "interpolate both": lambda m: F.interpolate(m(1, 1, 2), size=2, scale_factor=2),
    "interpolate mode": lambda m: F.interpolate(m(1, 1, 2), size=2, mode="cubic"),
    "interpolate rank": lambda m: F.interpolate(m(1, 1, 2), size=2, mode="bilinear"),
    "interpolate scale": lambda m: F.interpolate(m(1, 1, 2), scale_factor=-1.0),
    "interpolate bicubic": lambda m: F.interpolate(m(1, 1, 2, 2), size=(0, 2), mode="bicubic"),
    "interpolate nearest 2d": lambda m: F.interpolate(m(1, 1, 2, 2), size=(0, 2)),
    "interpolate trilinear": lambda m: F.interpolate(
        m(1, 1, 2, 2, 2), size=(2, 0, 2), mode="trilinear"
    ),
    "grid batch": lambda m: F.grid_sample(m(1, 1, 2, 2), m(2, 2, 2, 2), align_corners=False),
    "grid last": lambda m: F.grid_sample(m(1, 1, 2, 2), m(1, 2, 2, 3), align_corners=False),
    "grid mode": lambda m: F.grid_sample(m(1, 1, 2, 2), m(1, 2, 2, 2), mode="x"),
    "affine_grid": lambda m: F.affine_grid(m(1, 3, 3), (1, 1, 2, 2), align_corners=False),
    "attention embed": lambda m: F.scaled_dot_product_attention(
        m(1, 1, 2, 3), m(1, 1, 2, 4), m(1, 1, 2, 3)
    ),
    "attention mask": lambda m: F.scaled_dot_product_attention(
        m(1, 1, 2, 3), m(1, 1, 2, 3), m(1, 1, 2, 3), attn_mask=m(3, 3)
    ),
    "attention mask int": lambda m: F.scaled_dot_product_attention(
        m(1, 1, 2, 3), m(1, 1, 2, 3), m(1, 1, 2, 3), attn_mask=m.i(2, 2)
    ),
    "attention 1d": lambda m: F.scaled_dot_product_attention(m(3), m(3), m(3)),
    "lstm input": lambda m: m.module(torch.nn.LSTM(3, 4))(m(5, 2, 4)),
    "lstm state": lambda m: m.module(torch.nn.LSTM(3, 4))(m(5, 2, 3), (m(1, 2, 3), m(1, 2, 3))),
    "lstm dtype": lambda m: m.module(torch.nn.LSTM(3, 4))(m.d(5, 2, 3)),
    "gru_cell": lambda m: m.module(torch.nn.GRUCell(3, 4))(m(2, 4)),
    "lstm_cell state": lambda m: m.module(torch.nn.LSTMCell(3, 4))(m(2, 3), (m(2, 3), m(2, 3))),
    "nn.Linear": lambda m: m.module(torch.nn.Linear(3, 4))(m(2, 4)),
    "nn.Linear integers": lambda m: m.module(torch.nn.Linear(3, 4))(m.i(2, 3)),
    "nn.Conv2d": lambda m: m.module(torch.nn.Conv2d(3, 4, 3))(m(1, 1, 5, 5)),
    "nn.Embedding": lambda m: m.module(torch.nn.Embedding(3, 4))(m.of([3])),
    "nn.Embedding floats": lambda m: m.module(torch.nn.Embedding(3, 4))(m(3)),
    "nn.BatchNorm1d": lambda m: m.module(torch.nn.BatchNorm1d(3))(m(1, 3)),
    "nn.BatchNorm2d": lambda m: m.module(torch.nn.BatchNorm2d(3))(m(2, 3)),
    "nn.LayerNorm": lambda m: m.module(torch.nn.LayerNorm(3))(m(2, 4)),
    "nn.MultiheadAttention": lambda m: m.module(torch.nn.MultiheadAttention(4, 2))(
        m(2, 1, 3), m(2, 1, 3), m(2, 1, 3)
    ),
}

VALUES: dict[str, Case] = {
    "floor_divide zero": lambda m: m.i(2) // 0,
    "remainder zero": lambda m: m.i(2) % 0,
    "fmod zero": lambda m: torch.fmod(m.i(2), 0),
    "floor_divide zeros": lambda m: m.i(2) // m.of([1, 0]),
    "remainder zeros": lambda m: m.i(2) % m.of([1, 0]),
    "trunc divide zero": lambda m: torch.div(m.i(2), m.of([0, 1]), rounding_mode="trunc"),
    "rounding mode": lambda m: torch.div(m(2), m(2), rounding_mode="up"),
    "inv singular": lambda m: torch.linalg.inv(m(2, 2).zero_()),
    "solve singular": lambda m: torch.linalg.solve(m(2, 2).zero_(), m(2)),
    "cholesky indefinite": lambda m: torch.linalg.cholesky(-m.eye(2)),
    "torch.cholesky": lambda m: torch.cholesky(-m.eye(2)),
    "lu singular": lambda m: torch.linalg.lu_factor(m(2, 2).zero_()),
    "ldl pivots": lambda m: torch.linalg.ldl_solve(m.eye(2), m(2), m(2, 1)),
    "svd of nan": lambda m: torch.linalg.svd(m(2, 2).fill_(float("nan"))),
    "eigh of nan": lambda m: torch.linalg.eigh(m(2, 2).fill_(float("nan"))),
    "eig of inf": lambda m: torch.linalg.eig(m(2, 2).fill_(float("inf"))),
    "lu_solve": lambda m: torch.linalg.lu_solve(m.eye(2), m(2), m(2, 1)),
    "tensorinv": lambda m: torch.linalg.tensorinv(m(2, 3), ind=0),
    "norm order": lambda m: torch.linalg.norm(m(2, 2), ord=3),
    "norm name": lambda m: torch.linalg.norm(m(2, 2), ord="x"),
    "bernoulli p": lambda m: torch.bernoulli(m(2), 2.0),
    "bernoulli_ p": lambda m: m(2).bernoulli_(-1.0),
    "bernoulli tensor": lambda m: torch.bernoulli(m.of([2.0, 0.5])),
    "bernoulli_ tensor": lambda m: m(2).bernoulli_(m.of([2.0, 0.5])),
    "multinomial negative": lambda m: torch.multinomial(m.of([-1.0, 2.0]), 1),
    "multinomial zeros": lambda m: torch.multinomial(m(3).zero_(), 1),
    "multinomial infinite": lambda m: torch.multinomial(m.of([1.0, float("inf")]), 1),
    "multinomial many": lambda m: torch.multinomial(m(3).abs() + 1, 4),
    "multinomial none": lambda m: torch.multinomial(m(3).abs() + 1, 0),
    "multinomial 3d": lambda m: torch.multinomial(m(2, 2, 2).abs(), 1),
    "normal std": lambda m: torch.normal(0.0, -1.0, (2,), device=m.device),
    "normal_ std": lambda m: m(2).normal_(0, -1),
    "normal std tensor": lambda m: torch.normal(0.0, m.of([-1.0, 1.0])),
    "normal shapes": lambda m: torch.normal(m(2), m(3).abs()),
    "uniform_ order": lambda m: m(2).uniform_(1, 0),
    "uniform_ range": lambda m: m(2).uniform_(-3e38, 3e38),
    "exponential_": lambda m: m(2).exponential_(-1),
    "geometric_": lambda m: m(2).geometric_(0),
    "cauchy_": lambda m: m(2).cauchy_(0, -1),
    "log_normal_": lambda m: m(2).log_normal_(0, -1),
    "random_ order": lambda m: m(2).random_(3, 2),
    "random_ range": lambda m: m.i(2).int().random_(0, 2**40),
    "poisson": lambda m: torch.poisson(m.of([-1.0])),
    "binomial": lambda m: torch.binomial(m.of([-1.0]), m.of([0.5])),
    "randperm dtype": lambda m: torch.randperm(300, dtype=torch.uint8, device=m.device),
    "polygamma": lambda m: torch.polygamma(-1, m(2)),
    "mvlgamma": lambda m: torch.mvlgamma(m(2) * 0, 3),
    "renorm p": lambda m: torch.renorm(m(2, 2), -1.0, 0, 1.0),
    "renorm maxnorm": lambda m: torch.renorm(m(2, 2), 1.0, 0, -1.0),
    "nan_to_num": lambda m: m(2).logit("x"),
    "cumprod dtype": lambda m: m(2).cumprod(0, dtype="x"),
    "full overflow": lambda m: torch.full((2,), 300, dtype=torch.uint8, device=m.device),
    "fill_ overflow": lambda m: m.i(2).to(torch.int8).fill_(1000),
    "fill_ complex": lambda m: m(2).fill_(1j),
    "setitem complex": lambda m: m(2).__setitem__(0, 1j),
    "tensor overflow": lambda m: torch.tensor([2**70], device=m.device),
    "ragged": lambda m: torch.tensor([[1], [1, 2]], device=m.device),
    "int of inf": lambda m: int(m(1).fill_(float("inf"))),
    "index of float": lambda m: [1, 2][m(1)],
    "iteration": lambda m: list(m()),
    "len": lambda m: len(m()),
    "contains": lambda m: "a" in m(2),
    "interpolation": lambda m: torch.quantile(m(3), 0.5, interpolation="x"),
    "cov weights": lambda m: torch.cov(m(2, 3), fweights=m.of([-1, 1, 1])),
    "histogram": lambda m: torch.histogram(m(3), 0),
    "cdist p": lambda m: torch.cdist(m(2, 3), m(2, 3), p=-1.0),
    "pdist": lambda m: F.pdist(m(3)),
    "pdist p": lambda m: F.pdist(m(3, 2), -1.0),
    "unique_consecutive": lambda m: torch.unique_consecutive(m(3), dim=2),
    "isin": lambda m: torch.isin(m.c(2), m.c(2)),
    "memory_format": lambda m: m(2, 3).contiguous(memory_format=torch.channels_last),
    "devices": lambda m: m(2) + torch.ones(2, device="meta"),
    "generator": lambda m: m(2).normal_(generator="x"),
    "clone format": lambda m: m(2, 3).clone(memory_format=torch.channels_last),
    "split type": lambda m: torch.split(m(3), "a"),
    "chebyshev": lambda m: torch.special.chebyshev_polynomial_t(m(2), m(3)),
    "zeta": lambda m: torch.special.zeta(m(2), m(3)),
}

OUT: dict[str, Case] = {
    **{
        f"{name} out integers": lambda m, name=name: getattr(torch, name)(m(3), out=m.i(3))
        for name in names("sin exp sqrt neg abs floor sigmoid erf cumsum_ square relu_")
        if name not in ("cumsum_", "relu_")
    },
    **{
        f"{name} out integers": lambda m, name=name: getattr(torch, name)(m(3), m(3), out=m.i(3))
        for name in names("add sub mul div pow atan2 maximum fmod")
    },
    **{
        f"{name} out double": lambda m, name=name: getattr(torch, name)(
            m(3, 3), m(3, 3), out=m.d(3, 3)
        )
        for name in names("mm matmul add mul eq maximum")
    },
    **{
        f"{name} out double along": lambda m, name=name: getattr(torch, name)(
            m(3, 3), 0, out=m.d(3)
        )
        for name in names("sum mean prod amax argmax cumsum softmax std all any logsumexp norm")
        if name not in ("norm", "softmax")
    },
    **{
        f"{name} out expanded": lambda m, name=name: getattr(torch, name)(
            m(3), m(3), out=m(1).expand(3)
        )
        for name in names("add mul div eq maximum pow atan2 where_")
        if name != "where_"
    },
    **{
        f"{name} out expanded": lambda m, name=name: getattr(torch, name)(
            m(2, 3), out=m(1).expand(2, 3)
        )
        for name in names("sin exp tril triu neg ceil")
    },
    **{
        f"{name} out overlapping": lambda m, name=name: (
            lambda x: getattr(torch, name)(x[1:], m(3), out=x[:-1])
        )(m(4))
        for name in names("add mul div pow atan2 maximum eq_")
        if name != "eq_"
    },
    **{
        f"{name} out overlapping": lambda m, name=name: (
            lambda x: getattr(torch, name)(x[1:], out=x[:-1])
        )(m(4))
        for name in names("sin exp sqrt neg abs floor sigmoid erf")
    },
    "cat out dtype": lambda m: torch.cat([m(2), m(2)], out=m.i(4)),
    "cat out itself": lambda m: (lambda x: torch.cat([x, x], out=x))(m(4)),
    "cat out overlapping": lambda m: (lambda x: torch.cat([x[:2], x[1:3]], out=x))(m(4)),
    "cat out expanded": lambda m: torch.cat([m(2), m(2)], out=m(1).expand(4)),
    "stack out dtype": lambda m: torch.stack([m(2), m(2)], out=m.i(2, 2)),
    "sort out dtype": lambda m: torch.sort(m(3), out=(m.d(3), m.i(3))),
    "sort out indices": lambda m: torch.sort(m(3), out=(m(3), m(3))),
    "topk out dtype": lambda m: torch.topk(m(3), 2, out=(m.d(2), m.i(2))),
    "max out dtype": lambda m: torch.max(m(3, 3), 0, out=(m.d(3), m.i(3))),
    "max out indices": lambda m: torch.max(m(3, 3), 0, out=(m(3), m(3))),
    "median out indices": lambda m: torch.median(m(3, 3), 0, out=(m(3), m(3))),
    "mode out dtype": lambda m: torch.mode(m(3, 3), 0, out=(m.d(3), m.i(3))),
    "kthvalue out dtype": lambda m: torch.kthvalue(m(3), 2, out=(m.d(), m.i())),
    "gather out dtype": lambda m: torch.gather(m(3), 0, m.of([0]), out=m.d(1)),
    "gather out itself": lambda m: (lambda x: torch.gather(x, 0, m.of([0, 1, 2]), out=x))(m(3)),
    "index_select out itself": lambda m: (
        lambda x: torch.index_select(x, 0, m.of([0, 1, 2]), out=x)
    )(m(3)),
    "index_select out dtype": lambda m: torch.index_select(m(3), 0, m.of([0]), out=m.d(1)),
    "take out itself": lambda m: (lambda x: torch.take(x, m.of([0, 1, 2]), out=x))(m(3)),
    "take out dtype": lambda m: torch.take(m(3), m.of([0]), out=m.d(1)),
    "masked_select out dtype": lambda m: torch.masked_select(m(3), m.b(3), out=m.d(1)),
    "nonzero out dtype": lambda m: torch.nonzero(m(3), out=m(3, 1)),
    "addmm out dtype": lambda m: torch.addmm(m(2, 2), m(2, 2), m(2, 2), out=m.d(2, 2)),
    "bmm out dtype": lambda m: torch.bmm(m(1, 2, 2), m(1, 2, 2), out=m.d(1, 2, 2)),
    "dot out dtype": lambda m: torch.dot(m(2), m(2), out=m.d()),
    "mv out dtype": lambda m: torch.mv(m(2, 2), m(2), out=m.d(2)),
    "linalg.inv out dtype": lambda m: torch.linalg.inv(m.eye(2), out=m.i(2, 2)),
    "linalg.solve out dtype": lambda m: torch.linalg.solve(m.eye(2), m(2), out=m.i(2)),
    "linalg.qr out dtype": lambda m: torch.linalg.qr(m.eye(2), out=(m.i(2, 2), m.i(2, 2))),
    "linalg.eigh out dtype": lambda m: torch.linalg.eigh(m.eye(2), out=(m.c(2), m.i(2, 2))),
    "arange out": lambda m: torch.arange(3, out=m.b(3)),
    "linspace out": lambda m: torch.linspace(0, 1, 3, dtype=torch.float64, out=m(3)),
    "full out": lambda m: torch.full((3,), 1.5, out=m.i(3), dtype=torch.float32),
    "eye out": lambda m: torch.eye(2, out=m(1, 1).expand(2, 2)),
    "randperm out": lambda m: torch.randperm(3, out=m.b(3)),
    "multinomial out": lambda m: torch.multinomial(m(3).abs() + 1, 2, out=m(2)),
    "bernoulli out": lambda m: torch.bernoulli(m(3).sigmoid(), out=m(1).expand(3)),
    "normal out": lambda m: torch.normal(m(3), m(3).abs(), out=m(1).expand(3)),
    "softmax out": lambda m: torch.softmax(m(3), 0, out=m.i(3)),
    "histc out": lambda m: torch.histc(m(3), 3, out=m.i(3)),
    "bucketize out": lambda m: torch.bucketize(m(3), m(2), out=m(3)),
    "where out": lambda m: torch.where(m.b(3), m(3), m(3), out=m.i(3)),
    "where out itself": lambda m: (lambda x: torch.where(m.b(3), x[1:], 0.0, out=x[:-1]))(m(4)),
    "clamp out": lambda m: torch.clamp(m(3), 0, out=m.i(3)),
    "cross out": lambda m: torch.linalg.cross(m(3), m(3), out=m.i(3)),
    "fft out": lambda m: torch.fft.fft(m(3), out=m(3)),
    "complex out": lambda m: torch.complex(m(2), m(2), out=m(2)),
    "angle out": lambda m: torch.angle(m(2), out=m.i(2)),
    "logical_and out": lambda m: torch.logical_and(m(2), m(2), out=m.c(2)[:0]),
    "isin out": lambda m: torch.isin(m(2), m(2), out=m(2)),
    "aminmax out": lambda m: torch.aminmax(m(3), out=(m.d(), m.d())),
    "scatter out": lambda m: torch.scatter(m(3), 0, m.of([0]), m(1), out=m.d(3)),
    "scatter out itself": lambda m: (lambda x: torch.scatter(m(4), 0, m.of([0, 1]), x[:2], out=x))(
        m(4)
    ),
    "index_add out": lambda m: torch.index_add(m(3), 0, m.of([0]), m(1), out=m.d(3)),
    "index_copy out": lambda m: torch.index_copy(m(3), 0, m.of([0]), m(1), out=m.d(3)),
    "avg_pool out": lambda m: torch._C._nn.avg_pool2d(m(1, 1, 2, 2), 2, out=m.d(1, 1, 1, 1)),
    "gelu out": lambda m: torch._C._nn.gelu(m(2), out=m.d(2)),
    "mse_loss out": lambda m: torch._C._nn.mse_loss(m(2), m(2), out=m.i()),
    "device of out": lambda m: torch.add(m(2), m(2), out=torch.ones(2, device="meta")),
    "tuple of out": lambda m: torch.add(m(2), m(2), out=(m(2), m(2))),
}
