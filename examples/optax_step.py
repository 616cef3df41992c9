"""A PyTorch model trained by optax, in a step of JAX's own.

`calque.functional` makes a pure function of the module, and `jax.jit` compiles the step: the model
is PyTorch's, and everything around it is JAX's. At the end the weights go back into the module.

    pip install optax scikit-learn
    python examples/optax_step.py [--steps 200]
"""

import argparse

import jax
import jax.numpy as jnp
import optax
import torch
from sklearn.datasets import load_digits
from torch import nn

import calque


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    digits = load_digits()
    images, labels = jnp.asarray(digits.data / 16, dtype=jnp.float32), jnp.asarray(digits.target)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 10))
    apply, params = calque.functional(model)
    schedule = optax.cosine_decay_schedule(5e-3, steps)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))

    def loss_of(params, x, y, rng):
        logits = apply(params, x, rng=rng)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    @jax.jit
    def step(params, state, rng):
        rng, dropout, drawn = jax.random.split(rng, 3)
        chosen = jax.random.randint(drawn, (128,), 0, len(images))
        loss, gradients = jax.value_and_grad(loss_of)(
            params, images[chosen], labels[chosen], dropout
        )
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, rng, loss

    state, rng, losses = optimizer.init(params), jax.random.key(0), []
    for _ in range(steps):
        params, state, rng, loss = step(params, state, rng)
        losses.append(loss)
    model.load_state_dict({name: calque.to_torch(array).cpu() for name, array in params.items()})
    with torch.no_grad():
        guesses = model.eval()(torch.tensor(digits.data / 16, dtype=torch.float32)).argmax(1)
    right = (guesses == torch.tensor(digits.target)).float().mean().item()
    print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f}; {right:.1%} right, by PyTorch on the CPU")
    assert losses[-1] < losses[0]


if __name__ == "__main__":
    main()
