"""What an aggregator with noise refuses: whatever would leave the clients without any."""

from typing import Any

import numpy as np
import pytest
import torch

from calque.federated import learning
from calque.federated.learning import aggregators


def private() -> list[Any]:
    noisy = aggregators.dp_gaussian(1.0, 1.0)
    return [
        noisy,
        aggregators.adaptive_dp_gaussian(1.0, count_deviation=2.0),
        aggregators.clipped(0.5, aggregators.quantized(8, noisy)),
    ]


@pytest.mark.parametrize("number", range(3))
def test_buffers_that_would_get_no_noise_are_refused(number: int) -> None:
    data = [{"x": np.ones((2, 3), np.float32), "y": np.array([0, 1])}]
    norm = torch.nn.BatchNorm1d(3)
    process = learning.fed_avg(norm, batch_size=2, aggregator=private()[number])
    said = "clients change the buffers 'num_batches_tracked', 'running_mean', 'running_var'"
    with pytest.raises(TypeError, match=said):
        process.next(process.initialize(), data)


def test_buffers_that_no_client_changes_need_no_noise() -> None:
    module = torch.nn.Linear(3, 2)
    module.register_buffer("scale", torch.ones(()))
    data = [{"x": np.ones((2, 3), np.float32), "y": np.array([0, 1])}]
    process = learning.fed_avg(module, batch_size=2, aggregator=private()[0])
    state, _ = process.next(process.initialize(), data)
    assert float(state.buffers["scale"]) == 1.0


def test_a_norm_that_follows_clients_without_noise_is_not_private() -> None:
    for inner in private():
        with pytest.raises(ValueError, match="Use adaptive_dp_gaussian"):
            aggregators.adaptive_clipped(inner=inner)
    assert not aggregators.is_private(aggregators.clipped(1.0))
