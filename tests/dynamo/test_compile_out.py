"""`out=` of another size in compiled functions, which PyTorch resizes."""

import pytest
import torch
import torch._dynamo

from tests.dynamo.agreeing import agree


def into_nothing(x):
    found = torch.cumsum(x, 0, out=torch.empty(0, device=x.device))
    values, indices = x.new_empty(0), torch.empty(0, dtype=torch.long, device=x.device)
    torch.sort(x, out=(values, indices))
    return found, values, indices, found.t()


def into_constants(x):
    zeros, smaller = torch.zeros(3, 3, device=x.device), x.new_ones(1)
    torch.exp(x, out=zeros)
    torch.cat([x, x], out=smaller)
    return zeros, smaller, x + 1


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("function", [into_nothing, into_constants])
def test_a_tensor_for_results_is_resized(function, device):
    def calls(device):
        return [(torch.arange(12.0).reshape(4, 3).to(device),) for _ in range(2)]

    agree(function, calls, device)


def test_constants_have_memory_of_their_own_in_each_call():
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: (x.new_zeros(3), x + 1), backend="calque")
    first, _ = compiled(torch.ones(2))
    first.resize_(5).fill_(7)
    second, _ = compiled(torch.ones(2))
    assert second.tolist() == [0, 0, 0]
