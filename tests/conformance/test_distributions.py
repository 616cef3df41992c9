"""Every distribution of torch: what is exact against the CPU, samples statistically.

`CALQUE_SAMPLE` and `CALQUE_SEED` choose a part.
"""

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributions as D
from torch.distributions import kl_divergence

import calque

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:Singular sample detected"),
    pytest.mark.filterwarnings("ignore:.*_dirichlet_grad has no rule"),
]

Make = Callable[[Callable[[Any], torch.Tensor]], D.Distribution]
SCALE = [[1.0, 0.0, 0.0], [0.3, 0.8, 0.0], [-0.2, 0.1, 1.2]]
DISTRIBUTIONS: dict[str, Make] = {
    "Bernoulli": lambda t: D.Bernoulli(t([0.2, 0.7])),
    "Beta": lambda t: D.Beta(t([0.8, 2.0]), t([1.5, 3.0])),
    "Binomial": lambda t: D.Binomial(12, t([0.2, 0.7])),
    "Categorical": lambda t: D.Categorical(t([[0.2, 0.3, 0.5], [0.1, 0.1, 0.8]])),
    "Cauchy": lambda t: D.Cauchy(t([0.0, 1.0]), t([1.0, 2.0])),
    "Chi2": lambda t: D.Chi2(t([1.5, 4.0])),
    "ContinuousBernoulli": lambda t: D.ContinuousBernoulli(t([0.2, 0.7])),
    "Dirichlet": lambda t: D.Dirichlet(t([[0.8, 2.0, 1.5], [3.0, 1.0, 1.0]])),
    "Exponential": lambda t: D.Exponential(t([0.5, 2.0])),
    "FisherSnedecor": lambda t: D.FisherSnedecor(t([3.0, 8.0]), t([12.0, 14.0])),
    "Gamma": lambda t: D.Gamma(t([0.8, 3.0]), t([1.0, 2.0])),
    "Geometric": lambda t: D.Geometric(t([0.3, 0.7])),
    "Gumbel": lambda t: D.Gumbel(t([0.0, 1.0]), t([1.0, 2.0])),
    "HalfCauchy": lambda t: D.HalfCauchy(t([1.0, 2.0])),
    "HalfNormal": lambda t: D.HalfNormal(t([1.0, 2.0])),
    "Independent": lambda t: D.Independent(D.Normal(t([0.0, 1.0]), t([1.0, 2.0])), 1),
    "InverseGamma": lambda t: D.InverseGamma(t([6.0, 8.0]), t([1.0, 2.0])),
    "Kumaraswamy": lambda t: D.Kumaraswamy(t([0.8, 2.0]), t([1.5, 3.0])),
    "Laplace": lambda t: D.Laplace(t([0.0, 1.0]), t([1.0, 2.0])),
    "LKJCholesky": lambda t: D.LKJCholesky(3, t(1.5)),
    "LogNormal": lambda t: D.LogNormal(t([0.0, 0.5]), t([0.3, 0.5])),
    "LogisticNormal": lambda t: D.LogisticNormal(t([0.0, 0.5]), t([0.3, 0.5])),
    "LowRankMultivariateNormal": lambda t: D.LowRankMultivariateNormal(
        t([0.0, 1.0]), t([[0.5], [0.2]]), t([1.0, 0.7])
    ),
    "MixtureSameFamily": lambda t: D.MixtureSameFamily(
        D.Categorical(t([0.3, 0.7])), D.Normal(t([0.0, 4.0]), t([1.0, 2.0]))
    ),
    "Multinomial": lambda t: D.Multinomial(9, t([0.2, 0.3, 0.5])),
    "MultivariateNormal": lambda t: D.MultivariateNormal(t([0.0, 1.0, 2.0]), scale_tril=t(SCALE)),
    "NegativeBinomial": lambda t: D.NegativeBinomial(t([3.0, 5.0]), t([0.2, 0.5])),
    "Normal": lambda t: D.Normal(t([0.0, 1.0]), t([1.0, 2.0])),
    "OneHotCategorical": lambda t: D.OneHotCategorical(t([0.2, 0.3, 0.5])),
    "Pareto": lambda t: D.Pareto(t([1.0, 2.0]), t([6.0, 8.0])),
    "Poisson": lambda t: D.Poisson(t([0.5, 6.0])),
    "RelaxedBernoulli": lambda t: D.RelaxedBernoulli(t(0.5), t([0.2, 0.7])),
    "RelaxedOneHotCategorical": lambda t: D.RelaxedOneHotCategorical(t(0.5), t([0.2, 0.3, 0.5])),
    "StudentT": lambda t: D.StudentT(t([6.0, 9.0])),
    "TransformedDistribution": lambda t: D.TransformedDistribution(
        D.Normal(t([0.0, 1.0]), t([0.5, 0.5])), [D.SigmoidTransform(), D.AffineTransform(1.0, 2.0)]
    ),
    "Uniform": lambda t: D.Uniform(t([0.0, 1.0]), t([1.0, 4.0])),
    "VonMises": lambda t: D.VonMises(t([0.0, 1.0]), t([1.0, 2.0])),
    "Weibull": lambda t: D.Weibull(t([1.0, 2.0]), t([1.5, 3.0])),
    "Wishart": lambda t: D.Wishart(t(5.0), scale_tril=t(SCALE)),
}
EXACT = ("mean", "variance", "stddev", "mode")
DRAWS = 20_000
SAMPLE = float(os.environ.get("CALQUE_SAMPLE", "1"))
CHOSEN = sorted(
    random.Random(os.environ.get("CALQUE_SEED", "0")).sample(
        sorted(DISTRIBUTIONS), max(1, round(SAMPLE * len(DISTRIBUTIONS)))
    )
)


def make(name: str, device: str, grad: bool = False) -> tuple[D.Distribution, list[torch.Tensor]]:
    """The distribution on a device, and its parameters."""
    parameters: list[torch.Tensor] = []

    def tensor(values: Any) -> torch.Tensor:
        made = torch.tensor(values, device=device, requires_grad=grad)
        parameters.append(made)
        return made

    return DISTRIBUTIONS[name](tensor), parameters


def close(device: torch.Tensor, cpu: torch.Tensor) -> None:
    assert device.device.type == "jax"
    torch.testing.assert_close(
        device.detach().cpu(), cpu.detach(), rtol=1e-4, atol=1e-5, equal_nan=True
    )


@pytest.mark.parametrize("name", CHOSEN)
def test_moments_and_densities_are_those_of_the_cpu(name):
    ours, parameters = make(name, "jax", grad=True)
    theirs, expected = make(name, "cpu", grad=True)
    for what in EXACT:
        try:
            want = getattr(theirs, what)
        except NotImplementedError:
            with pytest.raises(NotImplementedError):
                getattr(ours, what)
        else:
            close(getattr(ours, what), want)
    torch.manual_seed(1)
    values = theirs.sample((4,))
    densities = [ours.log_prob(values.to("jax")), theirs.log_prob(values)]
    close(*densities)
    for density in densities:
        density.sum().backward()
    for one, other in zip(parameters, expected, strict=True):
        assert (one.grad is None) == (other.grad is None)
        if other.grad is not None:
            close(one.grad, other.grad)
    for method in ("entropy", "cdf"):
        arguments = [values] if method == "cdf" else []
        try:
            want = getattr(theirs, method)(*arguments)
        except NotImplementedError:
            continue
        close(getattr(ours, method)(*[a.to("jax") for a in arguments]), want)


@pytest.mark.parametrize("how", ["eager", "jit"])
@pytest.mark.parametrize("name", CHOSEN)
def test_samples_have_the_distribution_and_follow_the_seed(name, how):
    ours, _ = make(name, "jax")
    theirs, _ = make(name, "cpu")

    def draw() -> torch.Tensor:
        return ours.sample((DRAWS,))

    if how == "jit":
        if name in ("VonMises", "Wishart"):
            pytest.skip("PyTorch draws it in a loop that ends when the values allow")
        draw = calque.jit(draw)
    torch.manual_seed(7)
    samples = draw()
    again = draw()
    torch.manual_seed(7)
    assert torch.equal(draw(), samples)
    assert not torch.equal(again, samples)
    torch.manual_seed(3)
    expected = theirs.sample((DRAWS,))
    assert samples.shape == expected.shape
    assert samples.dtype == expected.dtype
    host = samples.cpu().double().reshape(DRAWS, -1)
    wanted = expected.double().reshape(DRAWS, -1)
    levels = torch.tensor([0.1, 0.25, 0.5, 0.75, 0.9], dtype=torch.float64)
    for column in range(host.shape[1]):  # the two empirical distribution functions agree
        for level in torch.quantile(wanted[:, column], levels):
            for side in (torch.lt, torch.le):
                got, want = (side(x[:, column], level).double().mean() for x in (host, wanted))
                assert abs(got - want) < 5 * (0.5 / DRAWS) ** 0.5


@pytest.mark.parametrize("name", CHOSEN)
def test_samples_carry_gradients_where_they_do_on_the_cpu(name):
    ours, parameters = make(name, "jax", grad=True)
    if not ours.has_rsample:
        pytest.skip("cannot be reparametrized")
    if name == "Wishart":
        pytest.skip("PyTorch changes in place what its gradient needs, on the CPU too")
    theirs, expected = make(name, "cpu", grad=True)
    theirs.rsample((100,)).sum().backward()
    ours.rsample((100,)).sum().backward()
    for one, other in zip(parameters, expected, strict=True):
        assert (one.grad is None) == (other.grad is None)
        assert one.grad is None or one.grad.isfinite().all()


PAIRS = ["Bernoulli", "Beta", "Categorical", "Dirichlet", "Exponential", "Gamma", "Gumbel"]
PAIRS += ["Laplace", "LowRankMultivariateNormal", "MultivariateNormal", "Normal", "Pareto"]
PAIRS += ["Poisson", "Uniform", "HalfNormal", "ContinuousBernoulli", "Geometric", "Cauchy"]


@pytest.mark.parametrize("name", [name for name in PAIRS if name in CHOSEN])
def test_divergences_are_those_of_the_cpu(name):
    def divergence(device: str) -> torch.Tensor:
        p, _ = make(name, device)
        q = DISTRIBUTIONS[name](lambda values: torch.tensor(values, device=device) * 0.9)
        return kl_divergence(p, q)

    close(divergence("jax"), divergence("cpu"))
