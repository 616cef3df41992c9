"""Names of layers in the operations of a graph."""

import re

import jax
import torch
from torch import nn

from calque.graph import JaxInterpreter, node_scopes


def test_operations_of_a_graph_are_named_by_the_layers_of_their_nodes() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2)))
    program = JaxInterpreter(torch.export.export(model, (torch.ones(3, 4),)))
    text = jax.jit(program).lower(jax.numpy.ones((3, 4))).as_text(debug_info=True)
    assert re.search(r"/1/1/jit", text)


def test_names_are_those_within_the_layer_around() -> None:
    names = node_scopes._names
    assert names(("L['self'].encoder", "L['self'].encoder.layers[0]")) == ("encoder", "layers.0")
    assert names(("L['model']", "L['model'].head")) == ("model", "head")
    assert names(("", "encoder", "encoder.layers.0")) == ("encoder", "layers.0")
