"""Where outputs go: what a sink gives the cell of, and what it writes itself."""

import jax
import jax.numpy as jnp
import pytest
import torch

import calque
from calque.device.memory.cell import cell_of, x64
from calque.dynamo.graphs.sinks import HostSink, InputSink
from calque.program.sinks import ArgumentSink, CellSink, Sink, StorageSink


def arrays(count: int) -> jax.Array:
    with x64():
        return jnp.arange(count, dtype=jnp.float32)


def run(sink: Sink, leaves: list[torch.Tensor], array: jax.Array) -> None:
    """As a program does: the cell gets the array, then the sink does the rest."""
    sink.target(leaves).array = array
    sink.store(leaves, array)


@pytest.mark.parametrize("sink", [StorageSink(0), ArgumentSink(0), InputSink(0, None, True)])
def test_a_whole_argument_gets_the_array_and_a_new_version(sink: Sink) -> None:
    x = torch.zeros(4, device="jax")
    array, version = arrays(4), x._version
    run(sink, [x], array)
    assert cell_of(x).array is array
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert x._version == version + 1


@pytest.mark.parametrize("sink", [ArgumentSink(0), InputSink(0, None, True)])
def test_a_part_of_a_storage_is_written_and_the_rest_stays(sink: Sink) -> None:
    base = torch.full((2, 4), 7.0, device="jax")
    run(sink, [base[1]], arrays(4))
    assert base.tolist() == [[7.0] * 4, [0.0, 1.0, 2.0, 3.0]]


def test_an_input_on_the_cpu_is_written_in_its_memory() -> None:
    x = torch.zeros(4)
    run(HostSink(0, None), [x], arrays(4))
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_sinks_are_equal_wherever_their_memory_lies() -> None:
    cell = cell_of(torch.zeros(1, device="jax"))
    spread = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    assert CellSink(cell) == CellSink(cell, placement=spread)
    assert CellSink(cell).memory is cell and StorageSink(3).memory == 3


def test_a_program_has_the_memory_of_what_it_replaces_and_no_other() -> None:
    state = torch.zeros(8, device="jax")

    @calque.jit
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        state.add_(x)
        return x + y

    x, y = torch.ones(8, device="jax"), torch.ones(8, device="jax")
    step(x, y)
    ((program,),) = step.programs.values()
    donated = [program.inputs[index].source.memory for index in program.donated]
    assert donated == [sink.memory for sink in program.sinks] == [cell_of(state)]
