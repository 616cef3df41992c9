"""Several devices share the clients, and give what one does."""

import os

import pytest

from tests import new_process
from tests.devices import devices

CLOSE = """
import numpy as np
from calque import errors as fed_errors

def close(a, b, message=""):
    most = np.abs(np.asarray(b)).max(initial=0)
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-6 * most, err_msg=message)
"""
PROGRAM = """
import jax, jax.numpy as jnp, numpy as np
from calque import federated as fed

assert jax.device_count() == 4
mesh = jax.make_mesh((4,), ("clients",), axis_types=(jax.sharding.AxisType.Auto,))
rng = np.random.default_rng(0)
data = rng.normal(size=(11, 3)).astype(np.float32)
model = rng.normal(size=3).astype(np.float32)

@fed.local("float32[3]", "float32[3]")
def update(model, data):
    return model - 0.1 * (model - data)

@fed.local("<float32[3],int32>", "<float32[3],int32>", framework="jax")
def merged(a, b):
    return a[0] + b[0], a[1] + b[1]

@fed.local("bool[3]", framework="jax")
def as_int(x):
    return x.astype(jnp.int32)

@fed.computation("float32[3]@SERVER", "{float32[3]}@CLIENTS")
def everything(model, data):
    new = fed.federated_map(update, (fed.federated_broadcast(model), data))
    weight = fed.federated_map(lambda v: v[0] * v[0], new)
    mean = fed.federated_mean(new, weight)
    off = new - fed.federated_broadcast(mean)
    spread = fed.federated_aggregate(
        off * off,
        (np.zeros(3, np.float32), 0),
        lambda acc, x: (acc[0] + x, acc[1] + 1),
        merged,
        lambda acc: acc[0] / acc[1],
    )
    bits = fed.federated_map(lambda v: v > 0.0, data)
    counts = fed.federated_map(as_int, bits)
    return {
        "mean": mean, "spread": spread, "off": off, "least": fed.federated_min(new),
        "any": fed.federated_max(bits), "all": fed.federated_collect(new),
        "secure": fed.federated_secure_sum(counts, 3), "plain": fed.federated_mean(data),
    }

for chunk in (1, 2, 3):
    one = everything.configured(chunk=chunk)(model, data)
    four = everything.configured(chunk=chunk, mesh=mesh)(model, data)
    for (path, a), b in zip(jax.tree.leaves_with_path(one), jax.tree.leaves(four), strict=True):
        close(a, b, str(path))
assert "all_reduce" in everything.configured(mesh=mesh).lower(model, data).as_text()

grad = lambda c: jax.grad(lambda m: (c(m, data)["mean"] ** 2).sum())(jnp.asarray(model))
close(grad(everything.configured(mesh=mesh)), grad(everything))

ties = np.array([1, 1, 2, 1, 3, 1, 3, 3, 1, 2, 2], np.float32)
least = fed.computation(fed.federated_min, "{float32}@CLIENTS")
for chunk in (1, 2):
    found = jax.grad(least.configured(mesh=mesh, chunk=chunk))(ties)
    np.testing.assert_array_equal(found, np.where(ties == 1, np.float32(0.2), 0))

explicit = jax.sharding.NamedSharding(
    jax.make_mesh((4,), ("clients",), axis_types=(jax.sharding.AxisType.Explicit,)),
    jax.sharding.PartitionSpec("clients"),
)
for chunk in (1, 3):  # arrays that JAX spreads, without and with devices that share the clients
    for comp in (everything, everything.configured(mesh=mesh)):
        found = comp.configured(chunk=chunk)(model, jax.device_put(data[:8], explicit))
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(everything(model, data[:8]))):
            close(a, b)
spread_data = jax.device_put(data[:8], explicit)
squared = lambda d: (everything(model, d)["mean"] ** 2).sum()
close(jax.jit(squared)(spread_data), squared(data[:8]))
for devices in (None, mesh, explicit.mesh):
    comp = everything.configured(mesh=devices) if devices else everything
    squared = lambda d: (comp(model, d)["mean"] ** 2).sum()
    expected = jax.grad(squared)(data[:8])
    for derived in (jax.grad(squared), jax.jit(jax.grad(squared))):
        found = derived(spread_data)
        assert jax.typeof(found) == jax.typeof(spread_data)
        close(found, expected)
    with jax.set_mesh(explicit.mesh):
        plus_one = lambda d: comp(model, d)["mean"] + 1
        for call in (plus_one, jax.jit(plus_one)):
            close(call(spread_data), everything(model, data[:8])["mean"] + 1)
        try:
            jax.grad(squared)(spread_data)
        except fed_errors.FederatedTypeError as error:
            assert "Differentiate outside of jax.set_mesh" in str(error), error
        else:
            raise AssertionError("no error")

bad = data.copy()
bad[7, 1] = np.nan
try:
    everything.configured(mesh=mesh)(model, bad)
except fed_errors.ClientError as error:
    assert "client 7" in str(error), error
else:
    raise AssertionError("no error")

reduce = fed.computation(
    lambda v: fed.federated_reduce(v, 0.0, lambda a, x: 0.5 * a + x), "{float32}@CLIENTS"
)
for chunk in (1, 2):
    found = reduce.configured(mesh=mesh, chunk=chunk)(data[:, 0])
    np.testing.assert_array_equal(found, reduce(data[:, 0]))

waves = (data + 1j * data[::-1]).astype(np.complex64)
of_waves = fed.computation(
    lambda v, w: (fed.federated_sum(v), fed.federated_mean(v, w)),
    "{complex64[3]}@CLIENTS", "{float32}@CLIENTS",
)
for chunk in (1, 2):
    found = of_waves.configured(mesh=mesh, chunk=chunk)(waves, np.abs(data[:, 0]))
    for a, b in zip(found, of_waves(waves, np.abs(data[:, 0])), strict=True):
        close(a, b)

total = fed.computation(fed.federated_sum, "{int8}@CLIENTS").configured(mesh=mesh)
assert int(total(np.full(11, 11, np.int8))) == 121
try:
    total(np.full(11, 12, np.int8))
except fed_errors.ClientError as error:
    assert "does not fit int8" in str(error), error
else:
    raise AssertionError("no error")

@fed.local("float32[3]*", framework="jax")
def added(x):
    return jnp.where(x.mask[:, None], x.elements, 0).sum(0), x.length

@fed.computation("{float32[3]*}@CLIENTS")
def sizes(data):
    found = fed.federated_map(added, data)
    return fed.federated_sum(found), fed.federated_collect(found), data

@fed.local("float32[5,3]", "int32", framework="jax")
def row(table, key):
    return table[key]

@fed.computation("float32[5,3]@SERVER", "{int32[2]}@CLIENTS")
def selected(table, keys):
    return fed.sequence_sum(fed.federated_select(keys, 5, table, row))

keys, table = rng.integers(0, 5, (6, 2)).astype(np.int32), np.eye(5, 3, dtype=np.float32)
close(selected.configured(mesh=mesh)(table, keys), table[keys].sum(1))

ragged = [rng.normal(size=(n, 3)).astype(np.float32) for n in (5, 0, 8, 1, 4, 2000)]
for chunk in (1, 2):
    one = sizes.configured(chunk=chunk)(ragged)
    four = sizes.configured(chunk=chunk, mesh=mesh)(ragged)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(four), strict=True):
        close(a, b)
lowered = sizes.configured(mesh=mesh).lower([*ragged, *[ragged[0]] * 94])
held = lowered.compile().memory_analysis().argument_size_in_bytes
assert held < 1.2 * 12 * 2200, held  # on the device that has most
print("equal")
"""

LEARNING = """
import jax, numpy as np, torch
from calque.federated import learning

assert jax.device_count() == 4
mesh = jax.make_mesh((4,), ("clients",))
rng = np.random.default_rng(0)
data = [
    {"x": rng.normal(size=(n, 4)).astype(np.float32), "y": rng.integers(0, 3, n)}
    for n in (5, 3, 8, 1, 4, 7)
]
torch.manual_seed(0)
module = torch.nn.Sequential(torch.nn.Dropout(0.3), torch.nn.Linear(4, 3))

def trained(make, **options):
    process = make(module, batch_size=4, shuffle=True, **options)
    state = process.initialize()
    for _ in range(3):
        state, metrics = process.next(state, data)
    return state, metrics, learning.Evaluation(module)(state, data)

for make, extra in (
    (learning.fed_avg, {"aggregator": learning.aggregators.median()}),
    (learning.scaffold, {"clients": 6}),
):
    one, four = trained(make, **extra), trained(make, mesh=mesh, **extra)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(four), strict=True):
        close(a, b)
print("equal")
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("program", [PROGRAM, LEARNING], ids=["language", "learning"])
def test_four_devices_give_what_one_does(program: str) -> None:
    result = new_process.run(CLOSE + program, env=os.environ | devices(4))
    assert result.returncode == 0, result.stderr[-4000:]
    assert "equal" in result.stdout
