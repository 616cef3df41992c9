"""`torch.compile(..., backend="calque", options={"buckets": ...})`: one program for many sizes."""

import copy
import logging

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn

from calque.dynamo.buckets import bucketed_graph

DEVICES = ("jax", "cpu")


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    bucketed_graph.unpadded.clear()


@pytest.fixture
def programs(monkeypatch):
    """The programs of a test that run padded."""
    found = []
    original = bucketed_graph.direct
    monkeypatch.setattr(bucketed_graph, "direct", lambda c, *a: found.append(c) or original(c, *a))
    return found


def compile(fn, buckets="pow2", **settings):
    settings = {"dynamic": True, **settings}
    return torch.compile(fn, backend="calque", options={"buckets": buckets}, **settings)


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.linear = nn.Linear(8 * 4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(F.max_pool2d(F.relu(self.norm(self.conv(x))), 2).flatten(1))


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 16)
        self.places = nn.Embedding(64, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.mix = nn.Linear(16, 48)
        self.head = nn.Linear(16, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        batch, time = ids.shape
        h = self.tokens(ids) + self.places(torch.arange(time, device=ids.device))
        h = self.layer(h)
        q, k, v = self.mix(h).view(batch, time, 3, 2, 8).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(h + mixed.transpose(1, 2).reshape(batch, time, 16))


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(x)
        spread = h.softmax(1).cumsum(1).mean(1) * h.std(0).sum(0)
        first = torch.cat([h[:, :1], h], 1)[:, 1:].flip(1)[:, 0]
        return h.mean(1) + h.amax(1) + h.sort(1).values[:, -1] + spread + first


MODELS = {
    "images": (Images, lambda b, t: torch.randn(b, 3, 4, 4), False, {0: "pow2"}),
    "tokens": (Tokens, lambda b, t: torch.randint(0, 11, (b, t)), True, "pow2"),
    "pooled": (Pooled, lambda b, t: torch.randn(b, t, 4), False, {0: [8], 1: [8, 16]}),
}


def loss_of(model, x, y):
    found = model(x)
    return F.cross_entropy(found.flatten(0, -2), y.flatten()), found


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "device"), [("images", "jax"), ("tokens", "cpu"), ("pooled", "cpu"), ("pooled", "jax")]
)
def test_a_bucket_has_one_program_that_trains_as_uncompiled(name, device, programs):
    make, inputs, each, buckets = MODELS[name]
    torch.manual_seed(0)
    reference = make()
    model = copy.deepcopy(reference).to(device)
    run = compile(lambda x, y: loss_of(model, x, y), buckets)
    for b, t in ((5, 7), (6, 6), (8, 5)):
        x, y = inputs(b, t), torch.randint(0, 5, (b, t) if each else (b,))
        loss, found = run(x.to(device), y.to(device))
        want, expected = loss_of(reference, x, y)
        for m, value in ((model, loss), (reference, want)):
            m.zero_grad()
            value.backward()
        pairs = [(loss, want), (found, expected)]
        pairs += zip((p.grad for p in model.parameters()), (p.grad for p in reference.parameters()))
        pairs += zip(model.buffers(), reference.buffers())
        for got, right in pairs:
            assert got.stride() == right.stride()
            torch.testing.assert_close(got.detach().cpu(), right.detach(), rtol=1e-3, atol=1e-4)
    assert list(bucketed_graph.unpadded) == []
    assert len(programs) == 2


@pytest.mark.parametrize("device", DEVICES)
def test_sizes_given_as_a_list(device, programs):
    f = compile(lambda x: x.sum(0) / x.shape[0], [4, 10])
    for n in (3, 4, 7, 10, 12):
        assert f(torch.full((n, 2), 3.0, device=device)).tolist() == pytest.approx([3, 3])
    assert len(programs) == 3  # twelve exceeds the list, so it is not padded


def test_only_the_dimensions_that_are_asked_for(programs):
    f = compile(lambda x: x.sum(0), {0: "pow2"})
    for shape in ((3, 5), (4, 5), (3, 6)):
        assert torch.equal(f(torch.ones(shape)), torch.full(shape[1:], float(shape[0])))
    assert len(programs) == 2


def test_a_dimension_that_is_marked(programs):
    def f(x):
        return x.softmax(0) + len(x)

    compiled = compile(f, dynamic=None)
    for n in (5, 6, 7):
        x = torch.randn(n, 3)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(compiled(x), f(x))
    assert len(programs) == 1


@pytest.mark.parametrize("device", DEVICES)
def test_arguments_that_are_written_and_sizes_among_the_results(device, programs):
    def f(x, y):
        x.mul_(2)
        y.add_(x.sum())
        return x.t() + 1, x.shape[0] * 2, x

    run = compile(f)
    for n in (5, 7):
        x, y = torch.ones(n, 3, device=device), torch.zeros((), device=device)
        found, size, same = run(x, y)
        assert same is x
        assert size == 2 * n
        assert (x == 2).all()
        assert y.item() == 6 * n
        assert found.shape == (3, n)
        assert found.stride() == (1, 3)
    assert len(programs) == 1


@pytest.mark.sampled(1)
@pytest.mark.parametrize("device", DEVICES)
def test_dropout_draws_what_it_draws_unpadded(device, programs):
    x = torch.ones(5, 4, device=device)
    for fn in (lambda x: F.dropout(x, 0.5), lambda x: x + torch.randn_like(x)):
        found = []
        for options in ({"buckets": "pow2"}, {}):
            torch._dynamo.reset()
            torch.manual_seed(3)
            run = torch.compile(fn, backend="calque", dynamic=True, options=options)
            mark = x.clone()
            torch._dynamo.mark_static(mark, 1)
            found.append((run(mark), run(mark)))
        for padded, exact in zip(*found, strict=True):
            # XLA may round the last digit differently in a loop of another length.
            torch.testing.assert_close(padded, exact, rtol=1e-6, atol=0)
    assert len(programs) == 2


@pytest.mark.parametrize("device", DEVICES)
def test_what_cannot_be_padded_is_told_once_and_runs_for_each_size(device, programs, caplog):
    def f(x):
        return torch.linalg.qr(x).R.abs()

    run = compile(f, {0: "pow2"})
    with caplog.at_level(logging.INFO, logger="calque.compile"):
        for n in (5, 6, 7):
            x = torch.randn(n, 3)
            torch.testing.assert_close(run(x.to(device)).cpu(), f(x))
    assert not programs
    (record,) = (record for record in caplog.records if record.name == "calque.compile")
    assert "linalg_qr" in record.getMessage()
    assert "test_buckets.py:" in record.getMessage()
    assert len(bucketed_graph.unpadded) == 1


@pytest.mark.parametrize("device", DEVICES)
def test_results_that_share_their_memory_still_do(device):
    def f(x):
        y = x + 1
        return y, y[1:]

    with torch.no_grad():
        y, part = compile(f)(torch.ones(5, 3, device=device))
    y[1] = 7
    assert part[0].tolist() == [7, 7, 7]
    assert bucketed_graph.unpadded


@pytest.mark.parametrize("device", DEVICES)
def test_arguments_that_are_views(device, programs):
    def f(x, y):
        return x.cumsum(0) @ y

    run = compile(f)
    base = torch.arange(64.0).reshape(8, 8)
    views = [lambda b: b[:5, :6], lambda b: b.t()[:7], lambda b: b[1:7], lambda b: b[:, ::2][:6]]
    for view in views:
        x = view(base)
        y = torch.ones(x.shape[1], 3)
        assert torch.equal(run(view(base.to(device)), y.to(device)).cpu(), f(x, y))


@pytest.mark.parametrize("device", DEVICES)
def test_results_that_repeat_their_memory(device):
    def fn(x):
        return (x * 2).expand(2, *x.shape), (x * 3)[:, 1], x.sum().expand(5)

    g = compile(fn)
    for n in (5, 6):
        x = torch.randn(n, 3)
        for got, want in zip(g(x.to(device)), fn(x), strict=True):
            assert got.stride() == want.stride()
            torch.testing.assert_close(got.cpu(), want)


def test_options_that_are_not_understood():
    for option in ("squares", [], [0], {0: "squares"}, {"batch": "pow2"}, 8):
        torch._dynamo.reset()
        with pytest.raises(Exception, match="buckets"):
            compile(lambda x: x + 1, option)(torch.ones(3))
