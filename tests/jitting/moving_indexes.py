"""Programs that index and slice by Python numbers that change between calls.

Each is a function of a `Held` and a tensor; `moving` names those whose numbers never decide a
shape.
"""

import numpy as np
import torch
from torch.nn import functional as F

MOVING = {}
OTHERS = {}


class Held:
    """What a program holds: data, buffers, parameters and counts."""

    def __init__(self, device):
        self.i, self.n, self.rate = 0, 0, 0.5
        self.data = torch.arange(60.0).reshape(20, 3).to(device)
        self.labels = torch.arange(20).to(device)
        self.cube = torch.arange(120.0).reshape(4, 5, 6).to(device)
        self.buffer = torch.zeros(10, 3, device=device)
        self.queue = torch.zeros(3, 12, device=device)
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 60).reshape(20, 3).to(device))
        self.bias = torch.nn.Parameter(torch.linspace(0, 1, 20).to(device))
        self.other, self.log = 0, []
        for one in (self.weight, self.bias):
            one.grad = torch.zeros_like(one)

    def state(self):
        grads = [self.weight.grad, self.bias.grad]
        held = [self.data, self.labels, self.buffer, self.queue, self.weight, self.bias]
        return held, grads, self.i, self.n, self.other, self.log


def moving(run):
    """A decorator of programs that are traced twice."""
    MOVING[run.__name__] = run
    return run


def other(run):
    """A decorator of programs that may be traced at each call."""
    OTHERS[run.__name__] = run
    return run


@moving
def a_slice(s, x):
    return s.data[s.i : s.i + 4] * x[0, 0]


@moving
def an_item(s, x):
    return s.data[s.i] * 2, s.labels[s.i] + 1


@moving
def batches_and_labels(s, x):
    rows, labels = s.data[s.i : s.i + 4], s.labels[s.i : s.i + 4]
    loss = F.cross_entropy(rows @ s.weight[:3], labels % 3)
    loss.backward()
    return loss.detach()


@moving
def an_item_with_a_gradient(s, x):
    loss = (s.weight[s.i] * s.bias[s.i + 1]).sum().square()
    loss.backward()
    return loss.detach()


@moving
def a_slice_with_a_gradient(s, x):
    loss = (s.weight[s.i : s.i + 3] ** 2).sum() + s.bias[s.i : s.i + 3].prod()
    (gradient,) = torch.autograd.grad(loss, [s.weight])
    return gradient


@moving
def second_derivatives(s, x):
    loss = (s.weight[s.i : s.i + 3] ** 3).sum() * s.weight[s.i, 1]
    (gradient,) = torch.autograd.grad(loss, [s.weight], create_graph=True)
    gradient.square().sum().backward()


@moving
def a_loss_whose_gradient_is_taken_outside(s, x):
    loss = (s.weight[s.i] * s.data[s.i : s.i + 2]).sum()
    loss.backward()
    return loss.detach()


@moving
def negative_indexes(s, x):
    return s.data[-s.i - 1] * 1, s.labels[-s.i - 5 : -s.i - 2] * 1


@moving
def columns(s, x):
    return s.cube[:, s.i % 5] + 1, s.cube[..., s.i % 6] + 1, s.cube[1, :, s.i % 6] + 1


@moving
def both_axes(s, x):
    return s.data[s.i, s.i % 3] * 1, s.cube[s.i % 4, s.i % 5, s.i % 6] * 2


@moving
def crops(s, x):
    i, j = s.i % 3, s.i % 4
    return s.cube[:, i : i + 2, j : j + 3] * 1, s.cube[..., j : j + 2].sum()


@moving
def new_axes(s, x):
    return s.data[None, s.i, :, None] * 1, s.cube[None, ..., s.i % 5, :] * 1


@moving
def steps(s, x):
    return s.labels[s.i : s.i + 8 : 3] * 1, s.cube[:, :, s.i % 3 : s.i % 3 + 3 : 2] * 1


@moving
def views_of_views(s, x):
    window = s.data[s.i : s.i + 6]
    return (
        window[2:4] * 1,
        window.t()[1] * 1,
        window[s.n % 3] * 1,
        window[s.n % 2 + 1 : s.n % 2 + 3].sum(),
    )


@moving
def flat_memory(s, x):
    return s.data.view(-1)[s.i : s.i + 5] * 1, s.data.t().reshape(-1)[s.i] * 1


@moving
def across_rows(s, x):
    flat = s.data.view(-1)
    flat[s.i * 2 : s.i * 2 + 5] += 1
    return flat[s.i * 2 + 1 : s.i * 2 + 4] * 1


@moving
def transposed_memory(s, x):
    turned = s.data.t()
    turned[:, s.i] = -1
    return turned[:, s.i : s.i + 2] * 1, turned[s.i % 3] * 1


@moving
def with_index_tensors(s, x):
    chosen = torch.tensor([0, 2], device=x.device)
    mask = torch.tensor([True, False, True], device=x.device)
    s.cube[s.i % 4, :, chosen] = 0.5
    s.data[[0, 2], s.i % 3] += 0.5
    return (
        s.data[s.i, chosen] * 1,
        s.cube[s.i % 4, chosen] * 1,
        s.cube[chosen, s.i % 5] * mask.sum(),
    )


@moving
def a_write(s, x):
    s.buffer[s.i % 10] = x.sum()
    s.buffer[(s.i + 3) % 10] = s.data[s.i]


@moving
def a_write_of_a_slice(s, x):
    s.data[s.i : s.i + 2] = x.sum()
    s.data[s.i + 1 : s.i + 3, 1:] = x


@moving
def a_write_of_a_constant(s, x):
    s.data[s.i] = 0
    s.labels[s.i] = -1
    s.labels[s.i + 1] = 2.0


@moving
def additions_in_place(s, x):
    s.buffer[s.i % 10] += x.sum()
    s.buffer[s.i % 10, 1] *= 2
    s.labels[s.i] += 100


@moving
def a_queue_of_keys(s, x):
    keys = F.normalize(s.data[:4] + s.i, dim=1)
    found = x.new_ones(4, 3) @ s.queue.clone()
    p = s.n % 3 * 4
    s.queue[:, p : p + 4] = keys.T
    return found


@moving
def a_ring_buffer(s, x):
    s.buffer[s.i % 10] = s.data[s.i]
    s.other = (s.i + 1) % 10
    return s.buffer.mean(0)


@moving
def a_view_that_is_written(s, x):
    row = s.buffer[s.i % 10]
    row.add_(1)
    row[1] = 7
    row.copy_(row * 2)
    return s.buffer * 1


@moving
def a_view_of_what_is_written_later(s, x):
    row = s.data[s.i]
    s.data.mul_(2)
    s.data[s.i, 0] = 5
    return row * 1


@moving
def a_write_with_a_gradient(s, x):
    cache = torch.zeros(20, 3, device=x.device)
    cache[s.i] = s.weight[0] * 2
    cache[s.i + 1 : s.i + 3] = s.weight[1:3] * 3
    cache[s.i] *= s.weight[3]
    loss = (cache * s.data).sum()
    loss.backward()
    return loss.detach()


@moving
def a_view_before_a_write_with_a_gradient(s, x):
    cache = s.weight * 1
    row = cache[s.i]
    cache[s.i] = s.bias[:3]
    loss = (cache**2).sum()
    loss.backward()
    return loss.detach(), row.detach() * 1


@moving
def a_buffer_made_in_the_call(s, x):
    found = torch.zeros(20, device=x.device)
    found[s.i] = 1
    found[s.i + 1 : s.i + 3].fill_(2)
    return found


@moving
def methods(s, x):
    return s.data.narrow(0, s.i, 3) * 1, s.data.select(0, s.i) * 1, s.data.roll(s.i, 0)


@moving
def parts_of_several_lengths(s, x):
    rows = s.data[:8]
    i = s.i % 4
    found = rows.narrow(0, i, 4) * 1, rows[i] * 1, rows[i : i + 5 : 2] * 1, rows[i : i + 5] * 1
    flat, i = s.data.view(-1)[:12], s.i % 8
    return *found, flat.narrow(0, i, 5) * 1, flat[i] * 1, flat[i : i + 3] * 1


@moving
def functions(s, x):
    found = torch.narrow(s.data, 0, s.i, 3) * 1, torch.select(s.data, dim=0, index=s.i) * 1
    return (*found, torch.roll(s.data, shifts=s.i, dims=0), torch.roll(s.data, -s.i))


@moving
def writes_by_methods(s, x):
    s.data.narrow(0, s.i, 2).fill_(1)
    s.data.select(0, s.i + 3).zero_()
    s.data[s.i + 4 : s.i + 6].copy_(x.sum())
    s.buffer[s.i % 10].uniform_(0, 0)


@moving
def a_loop(s, x):
    total = 0
    for k in range(3):
        total = total + s.data[s.i + k] * k
        s.buffer[(s.i + k) % 10] += 1
    return total


@moving
def positions_of_numpy(s, x):
    i = np.int64(2) * s.i
    return s.data[i % 17 : i % 17 + 3] * 1


@moving
def an_item_before_a_slice(s, x):
    return s.cube[s.i % 4][s.i % 3 : s.i % 3 + 2] * 1, s.cube[s.i % 4, 1:3][:, s.i % 6] * 1


@moving
def a_list_of_views(s, x):
    return torch.stack([s.data[s.i + k] for k in (0, 2)]), torch.cat(
        [s.data[s.i : s.i + 2], s.data[:1]]
    )


@moving
def views_of_other_kinds(s, x):
    window = s.data[s.i : s.i + 4]
    found = window.t() * 1, window.reshape(-1) * 1, window.view(2, 6) * 1, window.flip(0)
    return (
        *found,
        window.unfold(0, 2, 1).sum(2),
        window[:, None].expand(4, 2, 3) * 1,
        window.diagonal() * 1,
    )


@moving
def numbers_of_other_dtypes(s, x):
    whole = s.labels.to(torch.int32)[s.i : s.i + 3]
    pairs = torch.view_as_complex(s.cube.reshape(-1, 2))[s.i]
    return whole * 1, pairs * 1, (s.labels > 3)[s.i : s.i + 3] * 1


@other
def parts_of_complex_numbers(s, x):
    pairs = torch.view_as_complex(s.cube.reshape(-1, 2))[s.i]
    return pairs.real * 1, torch.view_as_real(pairs) * 1


@moving
def under_no_grad(s, x):
    with torch.no_grad():
        s.weight[s.i] -= 0.5
        s.bias[s.i : s.i + 2].mul_(0.5)
    return s.weight[s.i].detach() * 1


@moving
def under_vmap(s, x):
    return torch.func.vmap(lambda row: row[s.i % 3] * 2)(s.data)


@moving
def a_gradient_by_a_function(s, x):
    return torch.func.grad(lambda w: (w[s.i] ** 2).sum())(s.data)


@moving
def a_checkpoint(s, x):
    def part(w):
        return (w[s.i : s.i + 2] ** 2).sum()

    torch.utils.checkpoint.checkpoint(part, s.weight, use_reentrant=False).backward()


@moving
def returned_views(s, x):
    return s.data[s.i], s.data[s.i : s.i + 2, 1:], s.cube[:, s.i % 5]


@moving
def numbers_that_are_written(s, x):
    s.data[s.i] = s.i / 2
    s.data[0, 1], s.labels[3] = s.i, s.i
    s.labels[s.i] = s.i + 1
    s.data[s.data > 40] = s.rate * s.i
    s.cube[0, :, torch.tensor([0, 2], device=x.device)] = s.i * 1.0


@moving
def tensors_of_integers(s, x):
    n, i = s.labels, s.i
    s.other = torch.arange(2, device=x.device) + i
    n += 1
    found = (
        n + i,
        i - n,
        n * i,
        n / (i + 41),
        n // (i % 3 + 1),
        n % (i % 3 + 1),
        n.add(i),
        torch.mul(n, i),
    )
    asked = n > i, n == i, n.le(i), x > i, (n > 3) + 1
    return *found, *asked, torch.where(n > i, n, i), torch.where(x > 0, x, i)


@moving
def positions_between_numbers(s, x):
    found = torch.arange(s.i, s.i + 4, device=x.device)
    back = torch.arange(s.i + 9, s.i, -2, device=x.device)
    return found, back, torch.full((2,), s.i, device=x.device), s.weight.detach()[found % 5] * 1


@other
def integers_of_other_dtypes(s, x):
    small = s.labels.to(torch.int32)
    small[s.i] = s.i
    s.labels[s.i] = s.i / 2
    flags = s.labels > 4
    flags[s.i] = s.i
    last = small[3]
    return small + s.i, flags, last + s.i, torch.where(last > s.i, last, s.i), flags + s.i


@other
def numbers_that_do_not_fit(s, x):
    s.data[0] = 1e30 * 1e4**s.i
    return s.labels + 2**61 * s.i


@other
def the_whole_axis(s, x):
    return s.data[s.i - s.i : s.i - s.i + 20] * 1


@other
def kept_views(s, x):
    s.other = s.data[s.i : s.i + 2]
    return (s.weight[s.i] * 2)[1:]


@other
def offsets(s, x):
    same = s.data[s.i : s.i + 1].is_set_to(s.data[s.i : s.i + 1])
    return s.data[s.i].storage_offset(), same, s.data[s.i].data_ptr() - s.data.data_ptr()


@other
def growing_slices(s, x):
    return s.data[: s.i + 1].sum(), s.data[s.i :].mean(), s.data[s.i : 2 * s.i].sum()


@other
def overlapping_copies(s, x):
    s.data[s.i].copy_(s.data[s.i + 1])
    s.data[s.i].mul_(s.data[s.i + 2])


@other
def bits(s, x):
    return s.data[s.i].view(torch.int32) * 1, s.data.view(torch.int32)[s.i] * 1


@other
def strided(s, x):
    return s.data[s.i].as_strided((2,), (1,)) * 1, s.data[s.i].as_strided((2,), (1,), s.i) * 1


@other
def in_a_branch(s, x):
    row = s.data[s.i]
    return torch.cond(x.sum() > 0, lambda x: x + s.data[s.i, 0], lambda x: x - 1, (x,)), row * 1


@other
def a_regenerated_gradient(s, x):
    cache = s.weight * 1
    row = cache[s.i]
    cache.mul_(2)
    loss = row.sum()
    loss.backward()
    return loss.detach()


@other
def floats(s, x):
    try:
        return s.data[s.i / 2]
    except TypeError:
        return s.data[0] * 1


@other
def parts_of_lists(s, x):
    rows = [s.data[k] for k in range(20)]
    return rows[s.i] * 1, s.data[[s.i, 0]] * 1


@other
def a_resized_view(s, x):
    row = s.data[s.i].clone()
    row.resize_(2)
    return row
