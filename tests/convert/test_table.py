"""The table of layers counts what the layers are known to cost."""

import csv
import io
from collections import OrderedDict
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import calque
from calque.convert import layer_table


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, bias=False)
        self.line = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x).mean((2, 3))
        return self.line(self.line(y)) @ self.line.weight


def test_parameters_macs_and_bytes() -> None:
    table = layer_table(calque.record(Tied(), torch.ones(2, 3, 6, 6)))
    rows = {(row.name, row.kind): row for row in table.rows}
    conv = rows["conv", "Conv2d"]
    assert (conv.parameters, conv.macs) == (4 * 3 * 9, 2 * 4 * 4 * 4 * 27)
    assert conv.activation_bytes == 2 * 4 * 4 * 4 * 4
    lines = [row for row in table.rows if row.name == "line"]
    assert [row.parameters for row in lines] == [20, 0]  # a shared layer is counted once
    assert [row.macs for row in lines] == [2 * 16, 2 * 16]
    assert table.rows[-1].macs == 2 * 16
    assert table.total("parameters") == sum(p.numel() for p in Tied().parameters())
    assert "test_table.py:" in conv.source


def test_text_and_csv() -> None:
    table = layer_table(calque.record(Tied(), torch.ones(2, 3, 6, 6)))
    assert str(table).splitlines()[1].split() == [
        "conv",
        "Conv2d",
        "2x4x4x4",
        "108",
        "3,456",
        "512",
    ]
    read = list(csv.DictReader(io.StringIO(table.to_csv())))
    assert [row["name"] for row in read] == [row.name for row in table.rows]
    assert sum(int(row["macs"]) for row in read) == table.total("macs")


def test_attention_is_counted_and_a_layer_may_give_none() -> None:
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.randn(2, 5, 8)
    table = layer_table(calque.record(lambda x: layer(x, x, x, need_weights=False)[0], x))
    assert [(row.kind, row.output) for row in table.rows] == [("MultiheadAttention", "2x5x8")]
    projections, products = 2 * 5 * 8 * 8 * 4, 2 * 5 * 5 * 8 * 2
    assert table.total("macs") == projections + products


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_recurrent_layers_are_counted_step_by_step(kind: Any, gates: int) -> None:
    steps, batch, inner, outer = 5, 2, 4, 6
    recording = calque.record(kind(inner, outer), torch.randn(steps, batch, inner))
    expected = steps * batch * gates * outer * (inner + outer)
    assert layer_table(recording).total("macs") == expected


def test_names_in_a_table_are_no_formulas_and_no_commands_of_terminals() -> None:
    names = ['=cmd|"/c calc"!A1', "@sum", "\x1b[2J", "line\nbreak", "-1"]
    model = torch.nn.Sequential(OrderedDict((name, torch.nn.Linear(2, 2)) for name in names))
    recording = calque.record(model, torch.ones(1, 2))
    table = layer_table(recording)
    cells = [row[0] for row in csv.reader(table.to_csv().splitlines())][1:]
    assert cells == ['\'=cmd|"/c calc"!A1', "'@sum", "\\x1b[2J", "line\\nbreak", "'-1"]
    for text in (str(table), table.to_csv(), str(recording)):
        assert all(line.isprintable() for line in text.splitlines())
        assert "[2J" in text


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (lambda x: torch.tensor([x[0, 0], x[1, 1]]) * 2, "depends on values of tensors"),
        (lambda x: x.t_() * 2, r"changes the shape of an argument.*x.t\(\)"),
    ],
)
def test_what_has_no_operators_is_refused_in_words(program: Any, why: str) -> None:
    recording = calque.record(program, torch.ones(2, 3))
    assert layer_table(recording).total("macs") == 0
    with pytest.raises(calque.TraceError, match=f"(?s){why}"):
        recording.graph("aten")


def test_products_that_pytorch_does_not_count() -> None:
    matrix, vector = torch.randn(3, 4), torch.randn(4)
    counted = [
        (lambda m, v: m @ v, (matrix, vector), 12),
        (lambda m, v: torch.addmv(torch.ones(3), m, v), (matrix, vector), 12),
        (lambda m, v: v @ v + torch.vdot(v, v), (matrix, vector), 8),
        (torch.nn.Bilinear(3, 4, 5), (torch.randn(2, 3), torch.randn(2, 4)), 2 * 3 * 4 * 5),
    ]
    for first, second, ends, macs in (  # with three groups
        ((8, 16), (3, 16, 32), [2, 5, 8], 8 * 16 * 32),
        ((3, 4, 16), (16, 32), [2, 16, 32], 4 * 16 * 32),
        ((4, 16), (16, 32), [4, 8, 16], 4 * 16 * 32),
        ((3, 8, 16), (3, 16, 32), None, 3 * 8 * 16 * 32),
    ):
        offs = None if ends is None else torch.tensor(ends, dtype=torch.int32)
        args = torch.randn(first), torch.randn(second)
        counted.append((partial(F.grouped_mm, offs=offs), args, macs))
    for program, args, macs in counted:
        assert layer_table(calque.record(program, *args)).total("macs") == macs
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    with torch.no_grad():  # so that it is one operator
        macs = layer_table(calque.record(layer, torch.randn(2, 5, 8))).total("macs")
    assert macs == 10 * (8 * 24 + 8 * 8 + 2 * 8 * 16) + 2 * (2 * 5 * 5 * 8)


def test_a_tensor_that_is_given_twice_is_counted() -> None:
    attention, x = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.randn(2, 3, 8)
    alike = layer_table(calque.record(attention, x, x, x))
    apart = layer_table(calque.record(lambda x: attention(x, x, x), x))
    assert alike.total("macs") == apart.total("macs") > 0


def test_only_columns_of_numbers_have_a_sum() -> None:
    table = layer_table(calque.record(nn.Linear(2, 3), torch.ones(1, 2)))
    assert table.total("parameters") == 9 and table.total("activation_bytes") == 12
    for column in ("kind", "nothing"):
        with pytest.raises(ValueError, match="numeric columns are parameters, macs"):
            table.total(column)


class Selects(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)
        self.rnn = nn.LSTM(8, 3, 2, bidirectional=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        y = self.first(x)
        packed = nn.utils.rnn.pack_padded_sequence(y, lengths)
        found, _ = self.rnn(packed)
        large = y[y.sum(-1) > 0]
        return self.last(large), found.data @ torch.ones(6, 1)


def test_layers_are_counted_where_shapes_depend_on_values() -> None:
    torch.manual_seed(0)
    model, x, lengths = Selects(), torch.randn(5, 3, 4), torch.tensor([5, 3, 1])
    with FlopCounterMode(display=False) as counter:
        rows = int((model.first(x).sum(-1) > 0).sum())
        model.last(torch.ones(rows, 8))
        _ = torch.ones(9, 6) @ torch.ones(6, 1)
    weights = sum(p.numel() for p in model.rnn.parameters() if p.dim() == 2)
    table = layer_table(calque.record(model, x, lengths))
    assert table.total("macs") == counter.get_total_flops() // 2 + 9 * weights
    assert table.total("parameters") == sum(p.numel() for p in model.parameters())


def test_gradients_are_rows_without_products() -> None:
    layer = nn.Linear(2, 3)

    def program(x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        (found,) = torch.autograd.grad(layer(x).sum(), x, create_graph=True)
        layer(found).sum().backward()
        return found.detach()

    table = layer_table(calque.record(program, torch.ones(4, 2)))
    macs = {row.kind: row.macs for row in table.rows}
    assert macs["Linear"] == 4 * 2 * 3
    assert macs["grad"] == macs["backward"] == 0
