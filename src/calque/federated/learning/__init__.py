"""Federated learning of PyTorch modules: algorithms, aggregators, evaluation, partitioning."""

from calque.federated.learning import aggregators
from calque.federated.learning.averaging import fed_avg, fed_opt, fed_prox, fed_sgd
from calque.federated.learning.checkpoints import Checkpoints
from calque.federated.learning.drift import mime_lite, scaffold
from calque.federated.learning.evaluation import Evaluation, PersonalizedEvaluation
from calque.federated.learning.leaf import load_leaf
from calque.federated.learning.loading import load
from calque.federated.learning.models import Model
from calque.federated.learning.optimizers import Optimizer, sgd
from calque.federated.learning.partitioning import dirichlet, sample_clients
from calque.federated.learning.privacy import epsilon
from calque.federated.learning.process import IterativeProcess
from calque.federated.learning.running import History, plot_curves, run
from calque.federated.learning.setup import Settings
from calque.federated.learning.staging import stage, stage_own
from calque.federated.learning.state import Algorithm, Sent, State

__all__ = [
    "Algorithm",
    "Checkpoints",
    "Evaluation",
    "History",
    "IterativeProcess",
    "Model",
    "Optimizer",
    "PersonalizedEvaluation",
    "Sent",
    "Settings",
    "State",
    "aggregators",
    "dirichlet",
    "epsilon",
    "fed_avg",
    "fed_opt",
    "fed_prox",
    "fed_sgd",
    "load",
    "load_leaf",
    "mime_lite",
    "plot_curves",
    "run",
    "sample_clients",
    "scaffold",
    "sgd",
    "stage",
    "stage_own",
]
