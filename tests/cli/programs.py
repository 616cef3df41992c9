"""Programs that verbs are given."""

import torch
from torch import nn

from calque import federated


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        return self.linear(x).relu()


net = Net()
example_inputs = (torch.ones(4, 3),)
number = 3


@federated.computation("{float32[2]}@CLIENTS", "float32@SERVER")
def average(values, scale):
    return federated.federated_mean(values * 2.0) * scale


open_average = federated.computation(lambda values: federated.federated_mean(values))


def loop(x):
    while x.sum() < 10:
        x = x * 2
    return x


def wrong(x):
    return x.view(7)
