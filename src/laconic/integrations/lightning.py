"""Lightning: a callback that puts a method under ``Trainer(strategy="ddp")``."""

from __future__ import annotations

import copy
import logging
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from laconic.errors import LaconicError
from laconic.integrations.attach import attach
from laconic.integrations.kept import Agreement, gathered, go_on, part_of
from laconic.integrations.link import Link
from laconic.method import Method

_log = logging.getLogger("laconic")
_KEY = "laconic"


class Laconic(pl.Callback):
    """Exchanges gradients by ``method`` while ``trainer.fit`` runs with DDP, on CPUs and GPUs.

    ``link`` has the numbers, after the training too. Lightning's checkpoints hold every rank's memory, gathered by
    the first rank, and ``fit(ckpt_path=...)`` goes on to the same bits. With local steps they also hold each rank's
    model and optimizer; the checkpoint's own model, and what is validated, is the mean of all, and the last
    round is completed when training ends.

    ``gradient_clip_val`` clips the mean that was exchanged, and what it cuts off after a sparse exchange is lost;
    with local steps it clips each rank's own gradient, before the method does. ``LocalClip`` in the method loses
    nothing. Accumulation, ``bf16-mixed`` and ``16-mixed`` are Lightning's own.

        exchange = Laconic(laconic.topk(0.01))
        Trainer(strategy="ddp", callbacks=[exchange]).fit(model, loader)
        print(exchange.link.stats)
    """

    def __init__(self, method: Method) -> None:
        self.method = method
        self.link: Link | None = None
        self._handle: RemovableHandle | None = None
        self._agreement = Agreement()
        self._saved: list[dict[str, Any]] | None = None
        self._resumed = False

    def setup(self, *_: Any, **__: Any) -> None:
        """Forget the checkpoint of an earlier run."""
        self._saved, self._resumed = None, False

    def on_load_checkpoint(self, _: pl.Trainer, __: pl.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Keep what all ranks have saved until there is a link."""
        self._saved, self._resumed = checkpoint.get(_KEY), True

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Attach, and go on from the checkpoint."""
        ddp, optimizer = _found(trainer)
        precision = trainer.precision_plugin
        scaler = precision.scaler if isinstance(precision, MixedPrecision) else None
        # Before the link's own hook, which looks at gradients.
        self._handle = optimizer.register_step_pre_hook(_backward_first)
        self.link = attach(ddp, optimizer, self.method, scaler=scaler)
        if self._saved is not None:
            go_on(self.link, pl_module, self._saved)
        elif self._resumed and trainer.is_global_zero:
            _log.warning("the checkpoint was saved without laconic: nothing is owed yet.")
        self._saved = None

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add what each rank has to the checkpoint, and put the model that all agree on into it."""
        if self.link is None:
            return
        if self._agreement.entered:
            raise LaconicError(
                "a checkpoint was asked for within validation, where ranks have lent each other their models. Save "
                "it when validation has ended (on_validation_end), as ModelCheckpoint does."
            )
        checkpoint[_KEY] = gathered(part_of(self.link, pl_module))
        if self.link.rounds is not None and self.link.attached:
            with self.link.averaged():
                checkpoint["state_dict"] = copy.deepcopy(trainer.strategy.lightning_module_state_dict())

    def on_validation_start(self, *_: Any) -> None:
        """Validate the model that all ranks agree on."""
        if self.link is not None:
            self._agreement.enter(self.link)

    def on_validation_end(self, *_: Any) -> None:
        """Train on with each rank's own."""
        self._agreement.leave()

    def on_train_end(self, *_: Any) -> None:
        """Complete the last round, and stop."""
        if self.link is not None:
            self.link.finish()
        self._stop()

    def on_exception(self, *_: Any) -> None:
        """Stop, and talk to nobody."""
        self._stop()

    def _stop(self) -> None:
        self._agreement.leave()
        if self._handle is not None:
            self._handle.remove()
        if self.link is not None:
            self.link.detach()


def _found(trainer: pl.Trainer) -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
    """Return what to attach, or refuse it."""
    ddp, optimizers = trainer.strategy.model, trainer.optimizers
    if not isinstance(ddp, DistributedDataParallel):
        raise ValueError(
            f"laconic works under DDP, and {type(trainer.strategy).__name__} trains a {type(ddp).__name__}. Write "
            f"Trainer(strategy='ddp'); sharded models are for a loop of your own (docs/fsdp.md)."
        )
    if len(optimizers) != 1 or isinstance(optimizers[0], torch.optim.LBFGS):
        raise ValueError(
            f"laconic attaches one optimizer that steps once a backward pass, and configure_optimizers returned "
            f"{', '.join(type(o).__name__ for o in optimizers) or 'none'}. Give all parameters to one, in groups "
            f"if they need unlike settings."
        )
    return ddp, optimizers[0]


def _backward_first(
    optimizer: torch.optim.Optimizer,  # noqa: ARG001
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Run the closure in which Lightning makes gradients, so that they are there; step without it."""
    others = {name: value for name, value in kwargs.items() if name != "closure"}
    if kwargs.get("closure") is not None:
        with torch.enable_grad():
            kwargs["closure"]()
    return args, others
