"""Results of a jitted function that are objects of somebody's, holding tensors."""

import gc
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import calque


class Layer:
    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        self.keys, self.values = keys, values
        self.count = 1


class Cache:
    def __init__(self, config: dict) -> None:
        self.config = config
        self.layers: list[Layer] = []
        self.by_name: dict[str, tuple] = {}


@pytest.fixture(autouse=True)
def _few_objects():
    """Who holds an object is asked of the garbage collector: let it look at this test's only."""
    gc.freeze()
    yield
    gc.unfreeze()


CONFIG = {"size": 3}
WEIGHT = nn.Parameter(torch.ones(3, device="jax"))


@calque.jit
def run(x):
    cache = Cache(CONFIG)
    keys = x * 2
    cache.layers.append(Layer(keys, x + 1))
    cache.by_name["both"] = (keys, x - 1)
    cache.weight, cache.given = WEIGHT, x
    return {"sum": x.sum(), "cache": cache}


def test_an_object_is_made_anew_at_each_call_of_one_program():
    before = len(run.history)
    made = [run(torch.full((3,), float(i), device="jax"))["cache"] for i in range(3)]
    assert len(run.history) == max(before, 1)
    for i, cache in enumerate(made):
        layer = cache.layers[0]
        assert (type(cache), type(layer), layer.count) == (Cache, Layer, 1)
        assert layer.keys.tolist() == [2.0 * i] * 3
        assert layer.values.tolist() == [i + 1.0] * 3
        assert cache.by_name["both"][0] is layer.keys
        assert cache.by_name["both"][1].tolist() == [i - 1.0] * 3
    assert made[0].layers is not made[1].layers
    assert made[0].config is CONFIG
    assert made[0].weight is WEIGHT


def test_an_argument_in_an_object_is_the_calls_own():
    run(torch.zeros(3, device="jax"))
    x = torch.ones(3, device="jax")
    assert run(x)["cache"].given is x


def test_the_tensors_of_an_object_carry_gradients():
    w = torch.ones(2, device="jax", requires_grad=True)

    @calque.jit
    def call(x):
        return Layer(x * w, x + w)

    for i in range(2):
        w.grad = None
        layer = call(torch.full((2,), 1.0 + i, device="jax"))
        (layer.keys * layer.values).sum().backward()
        assert w.grad.tolist() == [(1.0 + i) * (1 + i + 2)] * 2
    assert len(call.history) == 1


def test_what_others_hold_keeps_its_identity():
    kept = Cache(CONFIG)

    @calque.jit
    def call(x):
        kept.layers = [Layer(x + 1, x)]
        return kept

    for i in range(2):
        assert call(torch.full((1,), float(i), device="jax")) is kept
        assert kept.layers[0].keys.tolist() == [i + 1.0]


def test_nothing_of_a_call_is_kept():
    layer = run(torch.zeros(3, device="jax"))["cache"].layers[0]
    reference = weakref.ref(layer)
    del layer
    gc.collect()
    assert reference() is None


def test_a_module_in_an_object_is_not_copied():
    class Holding:
        pass

    linear = nn.Linear(2, 2).to("jax")

    @calque.jit
    def call(x):
        result = Holding()
        result.module, result.y = linear, linear(x).detach()
        return result

    for _ in range(2):
        assert call(torch.ones(1, 2, device="jax")).module is linear


@pytest.mark.filterwarnings("default")
def test_a_cache_of_transformers():
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    config = transformers.GPT2Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    try:
        model = transformers.GPT2LMHeadModel(config).eval().to("jax")
    except ModuleNotFoundError as error:  # something that it imports does not load
        pytest.skip(str(error))
    call = calque.jit(model)
    with torch.no_grad():
        for seed in range(3):
            torch.manual_seed(seed)
            tokens = torch.randint(0, 20, (1, 4), device="jax")
            got, want = call(tokens, use_cache=True), model(tokens, use_cache=True)
            for a, b in zip(got.past_key_values.layers, want.past_key_values.layers, strict=True):
                torch.testing.assert_close(a.keys.cpu(), b.keys.cpu())
            assert got.past_key_values.get_seq_length() == 4
    assert call.compilations == 1
    assert len(call.history) == 1


def test_objects_among_the_arguments_that_are_others_at_each_call_are_warned_of():
    @calque.jit
    def double(batch):
        return batch.x * 2

    def call():
        return double(SimpleNamespace(x=torch.ones(2, device="jax")))

    for _ in range(6):
        assert call().tolist() == [2, 2]
    with pytest.warns(calque.RetraceWarning, match="argument 0 is another SimpleNamespace object"):
        call()
    assert double.history[-1] == "argument 0 is another SimpleNamespace object than it was"


def test_modules_that_take_turns_are_not_warned_of():
    layers = [torch.nn.Linear(2, 2).to("jax") for _ in range(8)]
    run = calque.jit(lambda layer, x: layer(x))
    for layer in layers * 2:
        run(layer, torch.ones(1, 2, device="jax"))
    assert len(run.history) <= 2 * len(layers)
