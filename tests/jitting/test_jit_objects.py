"""Results of a jitted function that are objects of somebody's, holding tensors."""

import dataclasses
import gc
import threading
import weakref
from collections import defaultdict
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

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


# The garbage collector finds the holders of an object.
pytestmark = pytest.mark.usefixtures("few_objects")

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


@pytest.mark.usefixtures("few_objects")
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
    except ModuleNotFoundError as error:  # one of its imports fails
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


class Owning:
    """Its objects are none but themselves: the last of them frees something."""

    def __init__(self, x):
        self.x = x

    def __del__(self):
        pass


def test_objects_that_cannot_be_taken_apart_are_warned_of():
    double = calque.jit(lambda batch: batch.x * 2)

    def call():
        return double(Owning(torch.ones(2, device="jax")))

    for _ in range(6):
        assert call().tolist() == [2, 2]
    with pytest.warns(calque.RetraceWarning, match="argument 0 now refers to a different Owning"):
        call()
    assert double.history[-1] == "argument 0 now refers to a different Owning object"


@pytest.mark.usefixtures("few_objects")
def test_objects_made_anew_for_each_call_are_served_by_one_program():
    double = calque.jit(lambda batch: batch.x * batch.scale)
    references = []
    for i in range(8):
        batch = SimpleNamespace(x=torch.full((2,), float(i), device="jax"), scale=2)
        references.append(weakref.ref(batch.x))
        assert double(batch).tolist() == [2 * i, 2 * i]
    assert double.history[1:] == [
        "objects are compared by their contents from now on (SimpleNamespace)"
    ]
    assert double.compilations == 1
    del batch
    gc.collect()
    assert [r() for r in references] == [None] * 8


def test_one_jitted_function_takes_a_class_apart_and_another_does_not():
    kept = SimpleNamespace(x=torch.ones(2, device="jax"))
    one = calque.jit(lambda b: b.x + 1)
    other = calque.jit(lambda b: b.x + 2)
    for i in range(3):
        assert one(SimpleNamespace(x=kept.x * i)).tolist() == [i + 1, i + 1]
        assert other(kept).tolist() == [3, 3]
    assert (len(one.history), len(other.history)) == (2, 1)


def test_more_than_is_worth_taking_apart_is_compared_as_an_object():
    f = calque.jit(lambda batch: batch.x * len(batch.items))
    x = torch.ones(2, device="jax")
    for count in (20_000, 20_000, 3, 3):
        assert f(SimpleNamespace(x=x, items=list(range(count)))).tolist() == [count, count]


def test_a_tokenizers_batch_is_served_by_one_program():
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {"a": 0, "b": 1, "c": 2, "[PAD]": 3, "[UNK]": 4}
    bare = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    bare.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bare, pad_token="[PAD]", unk_token="[UNK]"
    )
    embedding = nn.Embedding(5, 4).to("jax")

    @calque.jit
    def step(batch):
        assert isinstance(batch, transformers.BatchEncoding)
        batch["embedded"] = embedding(batch["input_ids"])
        return (batch["embedded"] * batch.attention_mask[..., None]).sum()

    for texts in (["a b", "c"], ["c c", "a"], ["a a", "b b"], ["b", "c b"]):
        batch = tokenizer(texts, return_tensors="pt", padding=True).to("jax")
        assert batch.encodings is not None  # new in each call
        loss = step(batch)
        expected = embedding.weight.detach()[batch.input_ids] * batch.attention_mask[..., None]
        torch.testing.assert_close(loss.detach(), expected.sum())
        assert batch["embedded"].shape == (2, 2, 4)
    assert (len(step.history), step.compilations) == (2, 1)


def test_modules_that_take_turns_are_not_warned_of():
    layers = [torch.nn.Linear(2, 2).to("jax") for _ in range(8)]
    run = calque.jit(lambda layer, x: layer(x))
    for layer in layers * 2:
        run(layer, torch.ones(1, 2, device="jax"))
    assert len(run.history) <= 2 * len(layers)


def test_what_a_returned_object_holds_is_created_by_each_call():
    state = SimpleNamespace(current={"b": 2})

    class Slots:
        __slots__ = ("items",)

        def __init__(self):
            self.items = {1}

    @calque.jit
    def call(x):
        shared = {"a": 1}
        held = [state.current, shared, Slots(), SimpleNamespace(items=[1]), threading.Lock()]
        return SimpleNamespace(t=x * 2, held=held, first=shared), {3}

    made = [call(torch.ones(1, device="jax")) for _ in range(3)]
    assert len(call.history) == 1
    for one, plain in made:
        current, shared, slots, space, lock = one.held
        assert current is state.current
        assert shared is one.first
        assert (shared, slots.items, space.items, plain) == ({"a": 1}, {1}, [1], {3})
        shared["a"] = 2
        slots.items.add(2)
        space.items.append(2)
        plain.add(4)
        assert lock.acquire(blocking=False)
    assert state.current == {"b": 2}


def test_containers_of_a_result_are_the_same_in_its_objects():
    w = torch.ones(2, device="jax", requires_grad=True)

    class Key:
        def __init__(self, x):
            self.x = x

    @calque.jit
    def call(x):
        items, by_name = [x * w], defaultdict(list, a=[x])
        pair = (x, [1])
        key = Key(x + 1)
        held = SimpleNamespace(items=items, by_name=by_name, pair=pair, by_key={key: 1})
        return held, items, by_name, pair, {key: x}

    for i in range(3):
        w.grad = torch.zeros_like(w)
        held, items, by_name, pair, by_key = call(torch.full((2,), 1.0 + i, device="jax"))
        assert held.items is items
        assert held.by_name is by_name
        assert held.pair[1] is pair[1]
        assert list(held.by_key) == list(by_key)
        items[0].sum().backward()
        assert w.grad.tolist() == [1.0 + i] * 2
        items.append(i)
        assert by_name["b"] == []
    assert len(call.history) == 1


class _OfTwo(Exception):
    def __init__(self, name, value):
        super().__init__(name)
        self.value = value


class _Pair(tuple):
    def __new__(cls, first, second):
        made = tuple.__new__(cls, (first,))
        made.second = second
        return made


class _Set(frozenset):
    def __new__(cls, *items):
        return frozenset.__new__(cls, items)


class _Hashed:
    def __init__(self, name):
        self.name = name

    def __hash__(self):
        return hash(self.name)


class _Number(int):
    pass


def test_objects_whose_class_needs_arguments_are_created_without_calling_it():
    @calque.jit
    def call(x):
        error, number = _OfTwo("a", x * 2), _Number(3)
        error.__cause__ = KeyError(x)
        number.notes = [1]
        return error, _Pair(x + 1, [1]), number, SimpleNamespace(number=number)

    for i in range(3):
        error, pair, number, holder = call(torch.full((1,), float(i), device="jax"))
        assert (error.args, error.value.item()) == (("a",), 2 * i)
        assert error.__cause__.args[0].item() == i
        assert (type(pair), pair[0].item(), pair.second) == (_Pair, i + 1, [1])
        assert holder.number is number
        assert (number, number.notes) == (3, [1])
        number.notes.append(2)
        pair.second.append(2)
    assert len(call.history) == 1


@pytest.mark.filterwarnings("ignore::calque.errors.RetraceWarning")
def test_objects_that_cannot_be_created_again_are_of_a_trace_each():
    @calque.jit
    def call(x):
        key = _Hashed("a")
        key.parts = {key: x * 2}  # a key that has no name until it is filled
        return key, SimpleNamespace(items=_Set(1, 2))

    for i in range(3):
        key, holder = call(torch.full((1,), float(i), device="jax"))
        assert key.parts[key].item() == 2 * i
        assert holder.items == {1, 2}


@pytest.mark.filterwarnings("ignore::calque.errors.RetraceWarning")
@pytest.mark.parametrize(
    ("store", "stored"),
    [
        (lambda one: one.total, lambda held: held.__self__),
        (lambda one: {one: 1}, lambda held: next(iter(held))),
        (lambda one: [KeyError((one,))], lambda held: held[0].args[0][0]),
        (lambda one: MappingProxyType({"a": one}), lambda held: held["a"]),
    ],
    ids=["method", "key", "exception", "proxy"],
)
def test_an_object_is_the_same_in_the_result_and_in_what_is_stored(store, stored):
    class Summed:
        def __init__(self, x):
            self.x = x

        def total(self):
            return self.x.sum()

    state = SimpleNamespace(held=None)

    @calque.jit
    def call(x, items):
        one = Summed(x * 2)
        state.held = store(one)
        items["held"] = store(one)
        return one

    for i in range(3):
        items = {}
        one = call(torch.full((2,), float(i), device="jax"), items)
        assert stored(state.held) is one
        assert stored(items["held"]) is one
        assert one.total().item() == 4 * i


def test_a_finalizer_of_a_tensor_that_the_function_creates_is_refused():
    ended = []

    @calque.jit
    def call(x):
        y = x * 2
        weakref.finalize(y, ended.append, "end")
        return y

    with pytest.raises(calque.TraceError, match="finalize waits for the end of a Tensor"):
        call(torch.ones(2, device="jax"))
    gc.collect()
    assert ended == []


def test_a_proxy_of_a_tensor_that_the_function_creates_is_refused():
    state = SimpleNamespace(held=None)

    @calque.jit
    def call(x):
        y = x * 2
        state.held = weakref.proxy(y)
        return y

    with pytest.raises(calque.TraceError, match=r"weakref\.proxy of a tensor"):
        call(torch.ones(2, device="jax"))


def test_objects_of_the_local_class_of_an_argument():
    class Pair(NamedTuple):
        a: Any
        b: int = 0

    @dataclasses.dataclass
    class Config:
        a: object
        b: int = 0

    class Grown:
        def __init__(self, a):
            self.a = a

        def twice(self):
            return type(self)(self.a * 2)

    x = torch.ones(2, device="jax")
    for kind, run in (
        (Pair, lambda p: p._replace(a=p.a + 1)),
        (Config, lambda p: dataclasses.replace(p, b=p.b + 1)),
        (Grown, lambda p: p.twice()),
    ):
        step = calque.jit(run)
        assert [type(step(kind(x))) for _ in range(3)] == [kind] * 3
    step, pair = calque.jit(lambda p: p._replace(a=p.a * 2)), Pair(x)
    for _ in range(4):
        pair = step(pair)
    assert pair.a.tolist() == [16, 16]
    assert step.history == ["first call"]
    nested = calque.jit(lambda p: type(p["q"][0])(x))
    assert type(nested({"q": [Pair(1)]})) is Pair
