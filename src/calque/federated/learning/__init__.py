"""Federated learning of PyTorch modules: algorithms, aggregators, evaluation, partitioning."""

from calque.federated.learning import aggregators
from calque.federated.learning.averaging import fed_avg, fed_prox, fed_sgd
from calque.federated.learning.checkpoints import Checkpoints
from calque.federated.learning.drift import mime_lite, scaffold
from calque.federated.learning.evaluation import Evaluation
from calque.federated.learning.loading import load
from calque.federated.learning.models import Model
from calque.federated.learning.optimizers import Optimizer, sgd
from calque.federated.learning.partitioning import dirichlet, sample_clients
from calque.federated.learning.process import IterativeProcess
from calque.federated.learning.staging import stage
from calque.federated.learning.state import Algorithm, Sent, State

__all__ = [
    "Algorithm",
    "Checkpoints",
    "Evaluation",
    "IterativeProcess",
    "Model",
    "Optimizer",
    "Sent",
    "State",
    "aggregators",
    "dirichlet",
    "fed_avg",
    "fed_prox",
    "fed_sgd",
    "load",
    "mime_lite",
    "sample_clients",
    "scaffold",
    "sgd",
    "stage",
]
