"""Layers and reductions with wrong options, values and results, for `test_errors.py`."""

import torch
import torch.nn.functional as F

from calque.ops.table.helpers import names
from tests.device.bad_shapes import Case

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
    "conv_transpose dilated": lambda m: F.conv_transpose2d(
        m(3, 1, 7, 1), m(1, 3, 5, 2), None, (3, 2), (1, 3), (2, 0), 1, (2, 3)
    ),
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
    "interpolate integers": lambda m: F.interpolate(m.i(1, 1, 2, 2), size=3),
    "interpolate complex": lambda m: F.interpolate(m.c(1, 1, 2, 2), size=3, mode="bilinear"),
    "grid_sample integers": lambda m: F.grid_sample(
        m.i(1, 1, 2, 2), m.i(1, 1, 1, 2), align_corners=False
    ),
    "reflect bools": lambda m: F.pad(m.b(1, 3), (1, 1), mode="reflect"),
    "softmax complex": lambda m: m.c(3).softmax(0),
    "round integers": lambda m: torch.round(m.i(3), decimals=1),
    "round complex": lambda m: torch.round(m.c(3), decimals=1),
    "igamma integers": lambda m: torch.igamma(m.i(3), m.i(3)),
    "logaddexp integers": lambda m: torch.logaddexp(m.i(3), m.i(3)),
    "bce integers": lambda m: F.binary_cross_entropy_with_logits(m.i(3), m(3)),
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
    "lu_solve pivots below": lambda m: torch.linalg.lu_solve(
        m.eye(2), m.of([0, 2]).int(), m.eye(2)
    ),
    "lu_solve pivots above": lambda m: torch.linalg.lu_solve(
        m.eye(2), m.of([1, 3]).int(), m.eye(2)
    ),
    "lu_unpack pivots": lambda m: torch.lu_unpack(m.eye(2), m.of([3, 2]).int()),
    "full of an integer too large": lambda m: torch.full((2,), 2**63, device=m.eye(1).device),
    "full of bytes": lambda m: torch.full((2,), 300, dtype=torch.uint8, device=m.eye(1).device),
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

WRONG_DTYPES: dict[str, Case] = {
    "argmax of booleans": lambda m: m.b(3).argmax(),
    "gcd of booleans": lambda m: torch.gcd(m.b(3), m.b(3)),
    "cross of booleans": lambda m: torch.linalg.cross(m.b(1, 3), m.b(2, 3)),
    "truncated booleans": lambda m: torch.div(m.b(3), m.b(3), rounding_mode="trunc"),
    "pooled booleans": lambda m: F.adaptive_max_pool2d(m.b(1, 4, 4), 2),
    "histogram of booleans": lambda m: torch.histogram(m.b(3), 1),
    "lerp of two floats": lambda m: torch.lerp(m.h(3), m(3), 0.5),
    "max_unpool2d indices": lambda m: F.max_unpool2d(m(1, 1, 2), m(1, 1, 2, dtype=torch.int32), 2),
    "multi_margin target": lambda m: F.multi_margin_loss(m(2, 3), m.i(2).int()),
    "multi_margin weight": lambda m: F.multi_margin_loss(m(2, 3), m.i(2), weight=m(2)),
    "multi_margin of no classes": lambda m: F.multi_margin_loss(m(2, 0), m.i(2)),
    "multilabel_margin of no classes": lambda m: F.multilabel_margin_loss(m(2, 0), m.i(2, 0)),
    "multilabel_margin target": lambda m: F.multilabel_margin_loss(m(2, 3), m.i(2, 3).int()),
}
