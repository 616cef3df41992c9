"""Names of layers in the operations of a jitted program."""

import re
import threading

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import calque


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.outer(self.inner(x).relu())


class Model(nn.Module):
    def __init__(self, depth: int = 1) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def names(lowered) -> set[str]:
    """The scopes of operations in the text of a program, calls of inner functions left out."""
    found = re.findall(r'loc\("jit\(\w+\)/([^"]*)"', lowered.as_text(debug_info=True))
    return {re.sub(r"/?[\w.]+(\(.*\))?$", "", name) for name in found}


def test_operations_are_named_by_the_path_of_their_layer() -> None:
    model = Model().to("jax")
    found = names(calque.jit(model).lower(torch.ones(3, 4, device="jax")))
    assert {"blocks.0", "blocks.0/inner", "blocks.0/outer", "head"} <= found


def test_a_backward_has_the_names_of_the_layers_whose_nodes_it_runs() -> None:
    model = Model().to("jax")

    @calque.jit
    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).sum()
        loss.backward()
        return loss * 2

    found = names(step.lower(torch.ones(3, 4, device="jax")))
    layers = {"blocks.0/inner", "blocks.0/outer", "head"}
    assert {f"model/{layer}" for layer in layers} <= found
    assert {f"model/{layer}/backward" for layer in layers} <= found
    assert "" in found  # code after the backward is in no layer


def test_a_layer_that_is_computed_again_in_the_backward_keeps_its_name() -> None:
    model = Block().to("jax")

    @calque.jit
    def step(x: torch.Tensor) -> None:
        checkpoint(model, x, use_reentrant=False).sum().backward()

    found = names(step.lower(torch.ones(3, 4, device="jax")))
    assert {"model/inner", "model/inner/backward", "model/outer/backward"} <= found
    assert not any("backward/" in name for name in found)


def test_repeated_layers_each_have_their_name_and_one_body() -> None:
    model = Model(depth=4).to("jax")
    text = calque.jit(model).lower(torch.ones(3, 4, device="jax")).as_text(debug_info=True)
    calls = set(re.findall(r"/(blocks\.\d)/jit\(repeated_layer\)", text))
    assert calls == {f"blocks.{i}" for i in range(4)}
    assert not re.search(r'"jit\(repeated_layer\)/blocks', text)


def test_layers_of_a_loop_have_one_name_for_all() -> None:
    model = Model(depth=4).to("jax")
    jitted = calque.jit(model, scan_layers=True)
    text = jitted.lower(torch.ones(3, 4, device="jax")).as_text(debug_info=True)
    assert "blocks.*" in text


def test_an_interrupted_layer_leaves_no_name_behind() -> None:
    class Leave(BaseException):
        pass

    class Raising(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise Leave

    raising, after = Raising(), nn.Linear(4, 4).to("jax")

    @calque.jit
    def run(x: torch.Tensor) -> torch.Tensor:
        try:
            raising(x)
        except Leave:
            pass
        return after(x)

    assert "after" in {n.rpartition("/")[2] for n in names(run.lower(torch.ones(2, 4).to("jax")))}
    assert not torch.nn.modules.module._global_forward_hooks


def test_modules_that_another_thread_calls_give_no_names() -> None:
    model, other = Block().to("jax"), nn.Linear(4, 4)

    @calque.jit
    def run(x: torch.Tensor) -> torch.Tensor:
        thread = threading.Thread(target=lambda: other(torch.ones(4)))
        thread.start()
        thread.join()
        return model(x)

    found = names(run.lower(torch.ones(2, 4, device="jax")))
    assert {"model/inner", "model/outer"} <= found
    assert not any("other" in name for name in found)
