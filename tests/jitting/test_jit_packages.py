"""What installed packages keep: registries by which they find what to call."""

import pytest
import torch
from torch import nn

import calque

transformers = pytest.importorskip("transformers")


class Hundredfold(nn.Module):
    def forward(self, x):
        return x * 100


@pytest.fixture
def activations():
    module = pytest.importorskip("transformers.activations")
    before = {key: dict.__getitem__(module.ACT2FN, key) for key in module.ACT2FN}
    yield module
    for key, value in before.items():
        module.ACT2FN[key] = value


def by_attribute(module, x):
    return module.ACT2FN["relu"](x)


def by_a_function_of_the_package(module, x):
    return module.get_activation("relu")(x)


@pytest.mark.parametrize("look", [by_attribute, by_a_function_of_the_package])
def test_another_entry_of_a_registry_is_called(activations, look):
    f = calque.jit(lambda x: look(activations, x))
    x = torch.ones(2, device="jax")
    assert [f(x).tolist() for _ in range(3)] == [[1, 1]] * 3
    activations.ACT2FN["relu"] = Hundredfold
    assert [f(x).tolist() for _ in range(2)] == [[100, 100]] * 2
    assert f.history[1:] == [
        "ACT2FN['relu'] now refers to a different object"
        if look is by_a_function_of_the_package
        else "transformers.activations.ACT2FN['relu'] now refers to a different object"
    ]


def test_another_entry_of_a_registry_that_is_an_object_is_called():
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    config = transformers.LlamaConfig(
        vocab_size=11,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).to("jax").eval()
    ids = torch.tensor([[1, 2, 3]], device="jax")

    @calque.jit
    @torch.no_grad()
    def logits(ids):
        return model(ids, use_cache=False).logits

    before = ALL_ATTENTION_FUNCTIONS["sdpa"]
    first = [logits(ids) for _ in range(3)]
    assert (len(logits.history), logits.compilations) == (1, 1)

    def doubled(*args, **kwargs):
        output, weights = before(*args, **kwargs)
        return output * 2, weights

    ALL_ATTENTION_FUNCTIONS["sdpa"] = doubled
    try:
        second = logits(ids)
        with torch.no_grad():
            expected = model(ids, use_cache=False).logits
    finally:
        del ALL_ATTENTION_FUNCTIONS["sdpa"]
    torch.testing.assert_close(second, expected)
    assert not torch.allclose(second, first[-1])
    assert torch.equal(logits(ids), first[-1])
