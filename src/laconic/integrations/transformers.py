"""transformers.Trainer: a callback that puts a method under DDP."""

from __future__ import annotations

import logging
import uuid
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from laconic.errors import LaconicError
from laconic.integrations.accelerate import link_under
from laconic.integrations.kept import Agreement, go_on, part_of, take_over
from laconic.integrations.link import Link
from laconic.method import Method

_log = logging.getLogger("laconic")
_KEY = "laconic"


def attach(trainer: Trainer, method: Method) -> Laconic:
    """Exchange gradients by ``method`` whenever ``trainer.train`` runs under DDP; return the callback that does it.

    Its ``link`` has the numbers, after the training too. Every rank writes what it owes into the checkpoint's
    folder (``laconic_0.pt``, as the Trainer writes ``rng_state_0.pth``), and ``train(resume_from_checkpoint=...)``
    goes on to the same bits, from folders in ``output_dir``. With local steps each rank's file also holds its model
    and optimizer; the checkpoint's own model, and what is evaluated, is the mean of all, and the last round is
    completed when training ends.

    ``max_grad_norm``, which is 1 unless you say otherwise, clips the mean that was exchanged, and what it cuts off
    after a sparse exchange is lost; with local steps it clips each rank's own gradient. ``LocalClip`` in the method
    loses nothing: set ``max_grad_norm=0``. Accumulation and mixed precision are the Trainer's own.

        exchange = attach(trainer, laconic.topk(0.01))
        trainer.train()
        print(exchange.link.stats)
    """
    callback = Laconic(trainer, method)
    trainer.add_callback(callback)
    return callback


class Laconic(TrainerCallback):
    """Attaches when training begins, saves and loads with the Trainer's checkpoints, and detaches at the end.

    A Trainer does not tell its callbacks of the model that DDP has wrapped, so this one is given the Trainer.
    """

    def __init__(self, trainer: Trainer, method: Method) -> None:
        self.trainer, self.method = trainer, method
        self.link: Link | None = None
        self._agreement = Agreement()
        self._mark = ""

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        """Attach, and go on from the checkpoint that the Trainer has resumed from."""
        if state.is_hyper_param_search:
            raise ValueError(
                "laconic saves beside a Trainer's own checkpoints, and a search for hyperparameters has them in "
                "folders of its own. Find them without laconic, then attach."
            )
        # An earlier training may have been broken off.
        self._stop()
        trainer, optimizer = self.trainer, cast("torch.optim.Optimizer", self.trainer.optimizer)
        self.link = link_under(trainer.accelerator, trainer.model_wrapped, optimizer, self.method)
        if args.process_index == 0:
            self._warn_of_clipping(args.max_grad_norm)
        marks = cast("dict[str, Any]", state.stateful_callbacks)
        if state.global_step:
            self._go_on(args, state.global_step, marks.get(_KEY))
        # The Trainer writes it into trainer_state.json: the files beside that must have the same.
        drawn = [uuid.uuid4().hex]
        dist.broadcast_object_list(drawn)
        self._mark = marks[_KEY] = drawn[0]

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Train with each rank's own model."""
        self._agreement.leave()

    def on_step_end(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,  # noqa: ARG002
        control: TrainerControl,
        **_: Any,
    ) -> None:
        """Have the model that all ranks agree on evaluated and saved."""
        self._agree_for(control)

    def on_epoch_end(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,
        control: TrainerControl,
        **_: Any,
    ) -> None:
        """Complete the last round, before the Trainer may load its best model; else as after a step."""
        self._agreement.leave()
        if self.link is not None and (control.should_training_stop or state.global_step >= state.max_steps):
            self.link.finish()
            self._stop()
        self._agree_for(control)

    def on_save(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        """Write what this rank has into the checkpoint's folder."""
        self._agreement.leave()
        if self.link is None or args.save_only_model:
            return
        folder = _folder(args, state.global_step)
        # On a host of its own a rank may be the first to write there.
        folder.mkdir(parents=True, exist_ok=True)
        part = part_of(self.link, self._module) | {"mark": self._mark}
        torch.save(part, folder / _file(self.link.transport.rank))

    def on_train_end(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        """Stop; complete the last round where evaluating ended the training, and no other model was loaded."""
        self._agreement.leave()
        loaded = args.load_best_model_at_end and state.best_model_checkpoint is not None
        if self.link is not None and self.link.attached and not loaded:
            self.link.finish()
        self._stop()

    @property
    def _module(self) -> torch.nn.Module:
        return cast("torch.nn.Module", self.trainer.model_wrapped.module)

    def _go_on(self, args: TrainingArguments, step: int, mark: str | None) -> None:
        """Go on from the checkpoint of a step, whose files have the mark that the Trainer has found."""
        assert self.link is not None
        if mark is None:
            if args.process_index == 0:
                _log.warning("the checkpoint was saved without laconic: nothing is owed yet.")
            return
        rank, ranks = self.link.transport.rank, self.link.transport.world_size
        folder = _folder(args, step)
        mine = folder / _file(rank)
        # Of fewer ranks, a new one has no file of its own.
        first = _read(mine if mine.exists() else folder / _file(0), mark)
        if first["ranks"] == ranks:
            take_over(self.link, self._module, first)
        else:
            go_on(self.link, self._module, [_read(folder / _file(i), mark) for i in range(first["ranks"])])

    def _agree_for(self, control: TrainerControl) -> None:
        if self.link is not None and (control.should_evaluate or control.should_save):
            self._agreement.enter(self.link)

    def _stop(self) -> None:
        self._agreement.leave()
        if self.link is not None:
            self.link.detach()

    def _warn_of_clipping(self, norm: float) -> None:
        if norm and self.method.local is None and self.method.memory != "none":
            _log.warning(
                "the Trainer clips what was exchanged at max_grad_norm=%g, and what it cuts off is lost. Write "
                "max_grad_norm=0, and clip=laconic.LocalClip(norm=...) in the method.",
                norm,
            )


def _folder(args: TrainingArguments, step: int) -> Path:
    return Path(args.output_dir or ".") / f"{PREFIX_CHECKPOINT_DIR}-{step}"


def _file(rank: int) -> str:
    return f"laconic_{rank}.pt"


def _read(path: Path, mark: str) -> dict[str, Any]:
    """Return a rank's part of the checkpoint with this mark."""
    part: dict[str, Any] = {}
    if path.exists():
        part = torch.load(path, weights_only=True, map_location="cpu")
    if part.get("mark") != mark:
        raise LaconicError(
            f"the checkpoint that the Trainer resumed from was saved with laconic, and {path} is not of it"
            f"{'' if part else ' (there is no such file)'}. Resume from a folder in output_dir that was saved as "
            f"usual; one that is elsewhere must be copied there, with the files of all ranks."
        )
    return part
