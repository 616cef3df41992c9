"""Dropout and recurrent layers, lowered: the numbers of the program, and no writes."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import calque

DROPPING: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: F.dropout(x, 0.5),
    "transposed": lambda x: F.dropout(x.transpose(0, 2), 0.3),
    "permuted": lambda x: torch.dropout(x.permute(1, 2, 0), 0.3, True),
    "expanded": lambda x: F.dropout(x[:1].expand(3, 4, 5), 0.5),
    "in place": lambda x: F.dropout((x * 2).transpose(0, 1), 0.5, inplace=True),
    "alpha": lambda x: F.alpha_dropout(x.transpose(0, 1), 0.4, training=True),
    "features": lambda x: F.dropout1d(x.transpose(0, 1), 0.5),
    "all": lambda x: F.dropout(x, 1.0),
    "none": lambda x: F.dropout(x.t() if x.dim() == 2 else x, 0.0),
    "bernoulli in place": lambda x: x.clone().transpose(0, 2).bernoulli_(0.5),
    "bernoulli": lambda x: torch.bernoulli(x.abs().clamp(0, 1)),
    "then another": lambda x: F.dropout(x.transpose(0, 2), 0.3) + torch.rand(5, 4, 3),
    "uniform": lambda x: torch.empty_like(x.transpose(0, 2)).uniform_(),
}


@pytest.mark.parametrize("name", DROPPING)
def test_random_numbers_are_those_of_the_program(name: str) -> None:
    program, x = DROPPING[name], torch.randn(3, 4, 5)
    for graph in (
        calque.record(program, x).graph("aten"),
        calque.lower(calque.trace(program, x)),
        calque.lower(calque.trace(program, x), functional=False),
    ):
        torch.manual_seed(7)
        expected = program(x)
        torch.manual_seed(7)
        assert torch.equal(graph(x), expected)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: F.rrelu(x, training=True),
        lambda x: F.rrelu(x * 1, 0.1, 0.9, training=True, inplace=True),
        lambda x: F.rrelu(x) + F.dropout(x, 0.4),
        lambda x: torch.randint_like(x, 5) * x + torch.randint_like(x, 2, 7),
        lambda x: torch.rand_like(x) * x + torch.randn_like(x),
    ],
)
def test_gradients_of_random_operators_are_those_of_the_program(program: Any) -> None:
    x = torch.randn(3, 4, 5).requires_grad_()
    for graph in (
        calque.record(program, x).graph("aten"),
        calque.lower(calque.trace(program, x)),
        calque.lower(calque.trace(program, x), functional=False),
    ):
        found = []
        for each in (program, graph):
            torch.manual_seed(7)
            result = each(x)
            found.append((result, *torch.autograd.grad(result.sum(), x)))
        assert all(map(torch.equal, *found))


def test_layers_drop_as_the_program_does() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.drop = nn.Linear(5, 4), nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            return self.drop(self.up(x).transpose(1, 2))

    model, x = Model(), torch.randn(3, 4, 5)
    for graph in (calque.record(model, x).graph("aten"), calque.lower(calque.trace(model, x))):
        torch.manual_seed(7)
        expected = model(x)
        torch.manual_seed(7)
        torch.testing.assert_close(graph(x), expected)


def layer(kind: Any, **options: Any) -> nn.Module:
    return kind(4, 6, **options)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "LSTM": lambda: layer(nn.LSTM),
    "LSTM, two directions": lambda: layer(nn.LSTM, num_layers=2, bidirectional=True),
    "LSTM, batch first": lambda: layer(nn.LSTM, batch_first=True, bias=False),
    "LSTM, projected": lambda: layer(nn.LSTM, proj_size=3, num_layers=2),
    "GRU": lambda: layer(nn.GRU, num_layers=2, batch_first=True),
    "GRU, two directions": lambda: layer(nn.GRU, bidirectional=True),
    "RNN": lambda: layer(nn.RNN, num_layers=2),
    "RNN of relu": lambda: layer(nn.RNN, nonlinearity="relu"),
}


def _writes(graph: torch.fx.GraphModule) -> list[str]:
    targets = [n.target for n in graph.graph.nodes if isinstance(n.target, torch._ops.OpOverload)]
    return [str(target) for target in targets if target._schema.is_mutable]


@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("name", LAYERS)
def test_recurrent_layers_are_operators_without_writes(name: str) -> None:
    model, x = LAYERS[name](), torch.randn(3, 2, 4)
    twin = copy.deepcopy(model)
    for graph in (calque.lower(calque.trace(model, x)), calque.record(model, x).graph("aten")):
        assert _writes(graph) == []
        assert "mkldnn" not in graph.code
        inputs, same = (torch.randn(3, 2, 4).requires_grad_() for _ in range(2))
        with torch.no_grad():
            same.copy_(inputs)
        found, expected = graph(inputs), twin(same)
        torch.testing.assert_close(found, expected)
        found[0].square().sum().backward()
        expected[0].square().sum().backward()
        torch.testing.assert_close(inputs.grad, same.grad)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("batch_first", [True, False])
def test_dropout_between_recurrent_layers_is_that_of_the_program(
    kind: Any, batch_first: bool
) -> None:
    model = kind(4, 6, num_layers=3, dropout=0.5, batch_first=batch_first)
    x = torch.randn(3, 2, 4)
    graph = calque.lower(calque.trace(model, x))
    torch.manual_seed(5)
    expected = model(x)
    torch.manual_seed(5)
    torch.testing.assert_close(graph(x), expected)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_packed_sequences_are_lowered(kind: Any) -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = kind(4, 6, num_layers=2, bidirectional=True)

        def forward(self, x: Tensor) -> Tensor:
            packed = pack_padded_sequence(x, torch.tensor([3, 2]))
            return pad_packed_sequence(self.rnn(packed)[0])[0]

    model, x = Packed(), torch.randn(3, 2, 4)
    recording = calque.record(model, x)
    other = torch.randn(3, 2, 4)
    for level in ("function", "module"):
        torch.testing.assert_close(recording.graph(level)(other), model(other))


def test_other_threads_and_later_calls_see_nothing() -> None:
    before = torch._VF.dropout, torch._VF.lstm, torch.backends.mkldnn.enabled  # type: ignore[attr-defined]
    calque.lower(calque.trace(nn.LSTM(4, 6), torch.randn(3, 2, 4)))
    after = torch._VF.dropout, torch._VF.lstm, torch.backends.mkldnn.enabled  # type: ignore[attr-defined]
    assert before == after
    assert not {"dropout", "lstm"} & vars(torch._VF).keys()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_has_no_writes(dtype: torch.dtype) -> None:
    norm = nn.RMSNorm(4, dtype=dtype)
    graph = calque.lower(calque.trace(norm, torch.ones(2, 4, dtype=dtype)))
    assert not any(str(node.target).split(".")[1:2] == ["add_"] for node in graph.graph.nodes)
    x = torch.randn(2, 4).to(dtype)
    torch.testing.assert_close(graph(x), norm(x), rtol=0, atol=0)


CELLS = {
    "gru": (nn.GRUCell(4, 4), 1),
    "lstm": (nn.LSTMCell(4, 4), 2),
    "rnn": (nn.RNNCell(4, 4), 1),
}


class _Steps(nn.Module):
    last: Tensor

    def __init__(self, cell: nn.Module, states: int) -> None:
        super().__init__()
        self.cell, self.states = cell, states
        self.register_buffer("last", torch.zeros(2, 4))

    def forward(self, x: Tensor) -> Tensor:
        state = tuple(torch.ones(2, 4) for _ in range(self.states))
        for step in x:
            found = self.cell(step, state if self.states > 1 else state[0])
            state = found if self.states > 1 else (found,)
        self.last.copy_(state[0].detach())
        return state[0] * 2


def _written(graph: torch.fx.GraphModule) -> list[str]:
    """What operators write to, by name."""
    schemas = {node: node.target._schema for node in graph.graph.nodes if _is_operator(node)}
    return [str(node.args[0]) for node, schema in schemas.items() if schema.is_mutable]


def _is_operator(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload)


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("grad", [True, False])
def test_what_pytorchs_own_operators_write_to_is_no_write(name: str, grad: bool) -> None:
    model = _Steps(*CELLS[name])
    x, other = torch.randn(3, 2, 4), torch.randn(3, 2, 4)
    with torch.set_grad_enabled(grad):
        graph = calque.lower(calque.record(model, x).graph("function"))
        assert _written(graph) == ["last"]
        places = {node.meta["origin"].line for node in graph.graph.nodes if _is_operator(node)}
        assert len(places) > 2
        (copied,) = [n for n in graph.graph.nodes if n.target is torch.ops.aten.copy_.default]
        assert "self.last.copy_" in copied.meta["origin"].text
        expected = model(other)
        kept = model.last.clone()
        model.last.zero_()
        torch.testing.assert_close(graph(other), expected)
        torch.testing.assert_close(model.last, kept)


@pytest.mark.parametrize("level", ["trace", "aten"])
def test_fill_diagonal_is_a_write_to_a_view(level: str) -> None:
    def program(x: Tensor, wrap: bool) -> Tensor:
        y = x * 2
        y.fill_diagonal_(3, wrap=wrap)
        return y * x

    def lowered(function: Callable[..., Any], *args: Any) -> Any:
        if level == "aten":
            return calque.record(function, *args).graph("aten")
        return calque.lower(calque.trace(function, *args))

    for shape, wrap in (((3, 5), False), ((9, 2), True), ((9, 2), False), ((3, 3, 3), True)):
        x, twin = (torch.arange(1.0, 1 + math.prod(shape)).view(shape) for _ in "12")
        graph = lowered(program, x.requires_grad_(), wrap)
        results = graph(x, wrap), program(twin.requires_grad_(), wrap)
        assert torch.equal(*results)
        assert torch.equal(
            *map(lambda y, z: torch.autograd.grad(y.sum(), z)[0], results, (x, twin))
        )
    x = torch.ones(3, 3)
    assert lowered(lambda x: x.fill_diagonal_(0), x.clone())(x) is x
    assert x.sum() == 6


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_padded_encoder_without_gradients_says_why_it_has_no_operators() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1).eval()
    x, mask = torch.randn(2, 4, 8), torch.tensor([[False] * 4, [False, False, True, True]])

    def program(x: Tensor, mask: Tensor) -> Tensor:
        with torch.no_grad():
            return encoder(x, src_key_padding_mask=mask)

    for graph in (calque.trace(program, x, mask), calque.record(program, x, mask).graph()):
        assert torch.equal(graph(x + 1, ~mask.flip(1)), program(x + 1, ~mask.flip(1)))
        with pytest.raises(calque.TraceError, match="enable_nested_tensor=False") as caught:
            calque.lower(graph)
        assert "test_lower_composites.py:" in caught.value.__notes__[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.int64])
def test_covariances_are_lowered(dtype: torch.dtype) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.cov(x), torch.corrcoef(x), x.cov(correction=0), x.corrcoef(), x[0].cov()

    x, other = (3 * torch.randn(2, 3, 5)).to(dtype)
    for graph in (
        calque.record(program, x).graph("aten"),
        calque.lower(calque.trace(program, x), functional=False),
    ):
        assert torch.ops.aten.mm.default in {node.target for node in graph.graph.nodes}
        torch.testing.assert_close(graph(other), program(other), rtol=0, atol=0, equal_nan=True)


def test_a_signal_from_its_spectrogram_is_lowered() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        spectrogram = torch.stft(x, 16, 4, window=torch.hann_window(16), return_complex=True)
        signal = torch.istft(spectrogram, 16, 4, window=torch.hann_window(16))
        return signal, spectrogram.istft(16, 4, window=torch.ones(16), length=24)

    x, other = torch.randn(2, 32), torch.randn(2, 32)
    for graph in (calque.record(program, x).graph("aten"), calque.lower(calque.trace(program, x))):
        assert torch.ops.aten._fft_c2r.default in {node.target for node in graph.graph.nodes}
        torch.testing.assert_close(graph(other), program(other), rtol=0, atol=0)


def test_an_operator_of_a_library_that_writes_is_named() -> None:
    @torch.library.custom_op("calque_tests::accumulate_", mutates_args=("x",))
    def accumulate_(x: torch.Tensor, y: torch.Tensor) -> None:
        x.add_(y)

    def program(x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(x)
        accumulate_(total, x)
        return total

    graph = calque.trace(program, torch.ones(2))
    with pytest.raises(calque.TraceError, match=r"calque_tests::accumulate_ .* writes to its arg"):
        calque.lower(graph)
    assert calque.lower(graph, functional=False)(torch.ones(2)).tolist() == [1, 1]
