"""`calque federated show module:name` and `calque federated demo`."""

from typing import Any

import click

from calque_cli.output import as_json, emit, table
from calque_cli.program import named


@click.group("federated")
def command() -> None:
    """Show a federated computation, or train on clients whose data differ."""


@command.command("show")
@click.argument("computation", metavar="MODULE:NAME")
@click.option("--tree", is_flag=True, help="Print every part of the AST with its type.")
@click.option("--normal", is_flag=True, help="Print the AST as the compiler sees it.")
@click.option("--stablehlo", is_flag=True, help="Print the program; all sizes must be known.")
@click.option("--clients", type=click.IntRange(min=0), help="Number of clients, with --stablehlo.")
@click.option("--chunk", type=click.IntRange(min=1), help="Number of clients at once.")
@as_json
def show(
    computation: str,
    tree: bool,
    normal: bool,
    stablehlo: bool,
    clients: int | None,
    chunk: int | None,
    json_: bool,
) -> None:
    """Print the type of a computation and its AST, or the program."""
    if (tree or normal) and stablehlo:
        raise click.UsageError("--stablehlo cannot be combined with --tree or --normal")
    found = _computation(computation)
    from calque.errors import CalqueError
    from calque.federated.building_blocks import formatted, structural
    from calque.federated.transformations import transform

    try:
        if stablehlo:
            text = found.configured(clients=clients, chunk=chunk).lower().as_text()
        else:
            block = transform(found.building_block) if normal else found.building_block
            text = structural(block) if tree else formatted(block)
    except CalqueError as error:
        raise click.ClickException(str(error)) from None
    name, kind = found.__name__, str(found.type_signature)
    if json_:
        emit({"name": name, "type": kind, "program" if stablehlo else "ast": text})
    else:
        click.echo(f"{name}: {kind}\n\n{text}")


@command.command("demo")
@click.option("--rounds", type=click.IntRange(min=1), default=20, help="Rounds of each algorithm.")
@click.option(
    "--clients",
    type=click.IntRange(min=2),
    default=50,
    help="Number of clients that share the digits.",
)
@as_json
def demo(rounds: int, clients: int, json_: bool) -> None:
    """Train on handwritten digits with three algorithms; most clients have few kinds of digits.

    The digits are included in scikit-learn; nothing is downloaded.
    """
    try:
        from sklearn.datasets import load_digits  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise click.UsageError(
            "the digits come with scikit-learn: pip install 'calque[demo]'"
        ) from None
    import numpy as np

    from calque.federated import learning

    x, y = load_digits(return_X_y=True)
    x, test = (x / 16).astype(np.float32), 297
    parts = learning.dirichlet(y[test:], clients, concentration=0.1)
    data = [{"x": x[test:][part], "y": y[test:][part]} for part in parts]
    held_out = [{"x": x[:test], "y": y[:test]}]
    evaluation = learning.Evaluation(_network())
    rows = []
    for name, process in _processes(clients).items():
        state, history = learning.run(
            process, data, rounds, participants=-(-clients // 5), progress=False
        )
        accuracy = float(evaluation(state, held_out)["accuracy"])
        rows.append({"algorithm": name, "loss": history[-1]["loss"], "accuracy": accuracy})
    if json_:
        emit(rows)
        return
    cells = [("algorithm", "loss on clients", "accuracy")]
    cells += [(r["algorithm"], f"{r['loss']:.4f}", f"{r['accuracy']:.1%}") for r in rows]
    click.echo(table(cells))


def _computation(path: str) -> Any:
    _, found = named(path)
    from calque.federated import Computation, PolymorphicComputation

    if isinstance(found, PolymorphicComputation):
        raise click.UsageError(
            f"{path} is polymorphic: choose types and give the result a name, such as "
            f"{found.__name__}.of('{{float32}}@CLIENTS')"
        )
    if not isinstance(found, Computation):
        raise click.UsageError(
            f"{path} must be a federated computation, not {type(found).__name__}"
        )
    return found


def _network() -> Any:
    import torch

    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)]
    return torch.nn.Sequential(*layers)


def _processes(clients: int) -> dict[str, Any]:
    from calque.federated import learning

    model = _network()
    return {
        "FedAvg": learning.fed_avg(model, client_optimizer=0.1, batch_size=10, epochs=5),
        "FedProx": learning.fed_prox(
            model, proximal=1.0, client_optimizer=0.1, batch_size=10, epochs=5
        ),
        "SCAFFOLD": learning.scaffold(
            model, clients=clients, client_learning_rate=0.1, batch_size=10, epochs=5
        ),
    }
