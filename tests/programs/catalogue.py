"""The programs that are run, and how: nothing in them is changed."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Program:
    """A script of a checkout, and the arguments that make it short."""

    name: str
    checkout: str
    """The folder that the checkout is in by default."""
    script: str
    """Its path in the checkout."""
    arguments: str = ""
    device: str = ""
    """Arguments that choose a device; {} is its name. Without, it asks torch.accelerator."""
    folder: str = ""
    """Where it is started, in the checkout; by default, in the script's own folder."""
    needs: tuple[str, ...] = ()
    """Packages without which it cannot run."""
    text: str = ""
    """A file of text that it reads and that is no part of the checkout."""
    nanogpt_data: str = ""
    """A folder for a text as nanoGPT prepares it."""
    copies: tuple[tuple[str, str], ...] = ()
    """Files of the checkout that stand in for others, which are too large for some copies of it."""
    names_no_device: bool = False
    """It makes its tensors without a device: PyTorch's default device is set."""
    compiled: bool = True
    """Whether it is also run with each of its models under torch.compile."""

    def start(self, checkout: Path) -> Path:
        """The folder that it is started in."""
        return checkout / (self.folder or str(Path(self.script).parent))


_VISION = ("torchvision",)
_GPT = (
    "--compile={compile} --dataset=letters --max_iters=12 --eval_interval=10 --eval_iters=2"
    " --log_interval=1 --batch_size=8 --block_size=64 --n_layer=3 --n_head=4 --n_embd=64"
    " --gradient_accumulation_steps=2 --dropout=0.1 --learning_rate=1e-3 --warmup_iters=2"
    " --out_dir=out"
)


def _words(model: str) -> Program:
    return Program(
        f"word_language_model, {model}",
        "examples",
        "word_language_model/main.py",
        f"--model {model} --epochs 1 --emsize 64 --nhid 64 --batch_size 40 --accel",
        copies=(("word_language_model/data/wikitext-2/valid.txt", "train.txt"),),
    )


PROGRAMS = (
    Program("mnist", "examples", "mnist/main.py", "--epochs 1", needs=_VISION),
    Program("mnist_rnn", "examples", "mnist_rnn/main.py", "--epochs 1 --accel", needs=_VISION),
    Program(
        "mnist_forward_forward",
        "examples",
        "mnist_forward_forward/main.py",
        "--epochs 12 --train_size 256 --test_size 64",
        needs=_VISION,
    ),
    Program("vae", "examples", "vae/main.py", "--epochs 1", needs=_VISION),
    Program(
        "dcgan",
        "examples",
        "dcgan/main.py",
        "--dataset fake --niter 1 --batchSize 8 --ngf 16 --ndf 16 --accel --workers 0"
        " --manualSeed 1",
        needs=_VISION,
    ),
    Program(
        "siamese_network",
        "examples",
        "siamese_network/main.py",
        "--epochs 1 --batch-size 16",
        needs=_VISION,
    ),
    Program(
        "imagenet, ResNet-18",
        "examples",
        "imagenet/main.py",
        "--dummy --epochs 1 --batch-size 4 --workers 0 --seed 1",
        needs=_VISION,
    ),
    _words("LSTM"),
    _words("Transformer"),
    Program("regression", "examples", "regression/main.py", names_no_device=True),
    Program(
        "reinforcement_learning, REINFORCE",
        "examples",
        "reinforcement_learning/reinforce.py",
        needs=("gymnasium",),
        names_no_device=True,
        compiled=False,
    ),
    Program(
        "reinforcement_learning, actor-critic",
        "examples",
        "reinforcement_learning/actor_critic.py",
        needs=("gymnasium",),
        names_no_device=True,
        compiled=False,
    ),
    Program(
        "nanoGPT, train.py",
        "nanoGPT",
        "train.py",
        _GPT,
        device="--device={} --dtype=float32",
        nanogpt_data="data/letters",
    ),
    Program(
        "minGPT, chargpt",
        "minGPT",
        "projects/chargpt/chargpt.py",
        "--model.model_type=gpt-nano --trainer.max_iters=12 --trainer.batch_size=16"
        " --trainer.num_workers=0 --data.block_size=16",
        device="--trainer.device={}",
        folder=".",
        text="input.txt",
    ),
    Program(
        "minGPT, adder",
        "minGPT",
        "projects/adder/adder.py",
        "--model.model_type=gpt-nano --trainer.max_iters=12 --trainer.num_workers=0"
        " --data.ndigit=1",
        device="--trainer.device={}",
        folder=".",
    ),
)
