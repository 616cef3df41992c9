"""A training step that reads state of many kinds, and ways to change each kind between two calls.

A change is a function of a `Training`; what it returns are other arguments for the calls after it.
"""

import torch
from torch import nn
from torch.nn import functional as F

FACTORS = {"loss": 1.0}
BIAS = 0.5


def shifted(x, by=0.25):
    return x + by


class Block(nn.Module):
    offset = 1.0

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)
        self.norm = nn.BatchNorm1d(4)
        self.rest = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        self.scale = 2.0
        self.options = {"twice": False, "names": ["a"]}
        self.register_buffer("shift", torch.zeros(4))

    def forward(self, x):
        x = self.norm(self.first(x)) * self.scale + self.shift + self.offset
        x = self.rest(x)
        if self.options["twice"]:
            x = x + x
        return self.last(x) - len(self.options["names"])


class Negated(Block):
    def forward(self, x):
        return -super().forward(x)


class Training:
    """The step and what it reads; equal for equal seeds on every device."""

    def __init__(self, device, keeps=False, make=torch.optim.SGD, **settings):
        torch.manual_seed(0)
        self.device = device
        self.model = Block().to(device)
        self.optimizer = make(self.model.parameters(), lr=0.05, **settings)
        self.x, self.y = torch.randn(5, 3).to(device), torch.randn(5, 2).to(device)
        model, optimizer, weight = self.model, self.optimizer, 1.5
        FACTORS["loss"] = 1.0

        def step(x, y):
            if keeps:
                optimizer.zero_grad()
            loss = (shifted(model(x)) - y).square().mean() * weight * FACTORS["loss"] + BIAS
            loss.backward()
            optimizer.step()
            if not keeps:
                optimizer.zero_grad()
            return loss

        self.step = self.plain = step

    def close_over(self, weight):
        """Change the variable that the step closes over."""
        names = self.plain.__code__.co_freevars
        self.plain.__closure__[names.index("weight")].cell_contents = weight

    def values(self):
        """All that training has changed."""
        held = [*self.model.parameters(), *self.model.buffers()]
        held += [p.grad for p in self.model.parameters() if p.grad is not None]
        states = self.optimizer.state.values()
        held += [v for s in states for v in s.values() if isinstance(v, torch.Tensor)]
        return [one.detach().cpu().clone() for one in held]


# Arguments ------------------------------------------------------------------------------------


def other_values(t):
    return t.x * 2, t.y


def another_batch(t):
    return t.x[:4].clone(), t.y[:4].clone()


def transposed(t):
    return t.x.t().contiguous().t(), t.y


def views(t):
    both = torch.cat([t.x, t.y], 1)
    return both[:, :3], both[:, 3:]


def view_from_the_middle(t):
    return torch.cat([t.x * 3, t.x])[5:], t.y


def expanded(t):
    return t.x[:1].expand(5, 3), t.y


def one_that_requires_grad(t):
    return t.x.clone().requires_grad_(), t.y


def one_with_an_attribute(t):
    x = t.x.clone()
    x.kind = "labelled"
    return x, t.y


def a_parameter_as_argument(t):
    return nn.Parameter(t.x.clone()), t.y


def another_dtype(t):
    return t.x, t.y.double()


# Tensors of the state -------------------------------------------------------------------------


def frozen(t):
    t.model.first.weight.requires_grad_(False)


def other_data(t):
    t.model.first.weight.data = t.model.first.weight.data * 3


def other_geometry(t):
    t.model.rest[0].weight.data = t.model.rest[0].weight.data.t()


def transposed_in_place(t):
    with torch.no_grad():
        t.model.rest[0].weight.t_()


def set_to_another(t):
    with torch.no_grad():
        t.model.first.bias.set_(torch.ones_like(t.model.first.bias))


def written_in_place(t):
    with torch.no_grad():
        t.model.first.weight.mul_(3)


def written_through_a_view(t):
    t.model.first.weight.data[0].fill_(0.5)


def other_parameter(t):
    t.model.first.bias = nn.Parameter(torch.ones_like(t.model.first.bias))


def no_parameter(t):
    t.model.first.bias = None


def tied(t):
    t.model.rest[2].weight = t.model.rest[0].weight


def gradient(t):
    t.model.first.weight.grad = torch.ones_like(t.model.first.weight)


def no_gradient(t):
    t.model.zero_grad()


def other_buffer(t):
    t.model.shift = torch.ones_like(t.model.shift)


def state_dict(t):
    t.model.load_state_dict({k: v * 2 for k, v in t.model.state_dict().items()})


def hook_of_a_tensor(t):
    t.model.first.weight.register_hook(lambda g: g * 2)


def hook_after_accumulation(t):
    def double(parameter):
        parameter.grad.mul_(2)

    t.model.last.bias.register_post_accumulate_grad_hook(double)


# Modules --------------------------------------------------------------------------------------


def mode(t):
    t.model.eval()


def mode_of_a_part(t):
    t.model.norm.eval()


def hook_of_a_module(t):
    t.model.first.register_forward_hook(lambda m, a, out: out * 2)


def hook_before_a_module(t):
    t.model.last.register_forward_pre_hook(lambda m, a: (a[0] * 2,))


def hook_of_a_backward(t):
    t.model.last.register_full_backward_hook(lambda m, a, b: tuple(2 * g for g in a))


def hook_that_comes_and_goes(t):
    t.model.first.register_forward_hook(lambda m, a, out: out * 2).remove()


def method(t):
    layer = t.model.first
    layer.forward = lambda x: F.linear(x, layer.weight * 2, layer.bias)


def attribute(t):
    t.model.scale = 3.0


def attribute_over_a_class_attribute(t):
    t.model.offset = 4.0


def attribute_deleted(t):
    t.model.__dict__.pop("offset", None)


def item(t):
    t.model.options["twice"] = True


def options_replaced(t):
    t.model.options = {**t.model.options, "twice": not t.model.options["twice"]}


def options_equal(t):
    t.model.options = dict(t.model.options)


def options_equal_then_changed(t):
    before = t.model.options
    t.model.options = dict(before)
    t.step(t.x, t.y)
    t.model.options = before
    before["twice"] = not before["twice"]


def list_longer(t):
    t.model.options["names"].append("b")


def dict_with_more(t):
    t.model.options["unused"] = 1


def other_class(t):
    t.model.__class__ = Negated


def other_module(t):
    torch.manual_seed(3)
    t.model.last = nn.Linear(4, 2).to(t.device)


def order_of_modules(t):
    modules = t.model.rest._modules
    modules["0"] = modules.pop("0")


def a_module_less(t):
    del t.model.rest[1]


# Python around them ---------------------------------------------------------------------------


def closure(t):
    t.close_over(2.5)


def entry_of_a_global(t):
    FACTORS["loss"] = 2.0


def default_of_a_function(t):
    shifted.__defaults__ = (0.75,)


# The optimizer --------------------------------------------------------------------------------


def learning_rate(t):
    t.optimizer.param_groups[0]["lr"] = 0.02


def weight_decay(t):
    t.optimizer.param_groups[0]["weight_decay"] = 0.2


def maximize(t):
    t.optimizer.param_groups[0]["maximize"] = True


def group(t):
    t.optimizer.param_groups[0] = {**t.optimizer.param_groups[0], "maximize": True}


def group_equal_then_changed(t):
    old = t.optimizer.param_groups[0]
    t.optimizer.param_groups[0] = dict(old)
    t.step(t.x, t.y)
    old["lr"] = 1e6  # no longer used by the optimizer
    t.optimizer.param_groups[0]["lr"] = 0.03


def fewer_parameters(t):
    t.optimizer.param_groups[0]["params"].pop()


def learning_rate_and_back(t):
    t.optimizer.param_groups[0]["lr"] = 9.0
    t.optimizer.param_groups[0]["lr"] = 0.05


def moments(t):
    for state in t.optimizer.state.values():
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and value.ndim:
                state[key] = torch.ones_like(value)


def state_dict_of_the_optimizer(t):
    t.optimizer.load_state_dict(t.optimizer.state_dict())
    t.step(t.x, t.y)
    t.optimizer.param_groups[0]["lr"] = 0.01


def hook_of_the_optimizer(t):
    t.optimizer.register_step_pre_hook(lambda o, a, k: t.model.last.zero_grad())


CHANGES = [
    *(other_values, another_batch, transposed, views, view_from_the_middle, expanded),
    *(one_that_requires_grad, one_with_an_attribute, a_parameter_as_argument, another_dtype),
    *(frozen, other_data, other_geometry, transposed_in_place, set_to_another, written_in_place),
    *(written_through_a_view, other_parameter, no_parameter, tied, gradient, no_gradient),
    *(other_buffer, state_dict, hook_of_a_tensor, hook_after_accumulation),
    *(mode, mode_of_a_part, hook_of_a_module, hook_before_a_module, hook_of_a_backward),
    *(hook_that_comes_and_goes, method, attribute, attribute_over_a_class_attribute),
    *(attribute_deleted, item, options_replaced, options_equal, options_equal_then_changed),
    *(list_longer, dict_with_more, other_class, other_module, order_of_modules, a_module_less),
    *(closure, entry_of_a_global, default_of_a_function),
    *(learning_rate, weight_decay, maximize, group, group_equal_then_changed, fewer_parameters),
    *(learning_rate_and_back, moments, state_dict_of_the_optimizer, hook_of_the_optimizer),
]
"""All of them."""


def run(device, changes, wrap=lambda step: step, **settings):
    """What the calls between some changes give, and all values in the end."""
    training = Training(device, **settings)
    training.step = wrap(training.plain)
    usual = training.x, training.y
    found = [training.step(*usual) for _ in range(4)]
    for change in changes:
        changed = change(training) or usual
        found += [training.step(*one) for one in (changed, usual, changed, usual, usual)]
    shifted.__defaults__ = (0.25,)
    return [loss.detach().cpu() for loss in found], training.values()
