"""Speech written down by a recognizer with connectionist temporal classification (CTC)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from laconic.arguments import check_choice, check_whole
from laconic.lab.data import kinds
from laconic.lab.data.content import kind_of
from laconic.lab.data.splits import check_split, split
from laconic.lab.data.store import load
from laconic.lab.features import BANDS, Frames, frames_of
from laconic.lab.models.ctc import Alphabet, Recognizer, ctc_losses, greedy
from laconic.lab.order import Order
from laconic.lab.seeds import seed_for
from laconic.lab.training import Training
from laconic.lab.word_errors import word_errors
from laconic.lab.work import Metric, Place, Tally

Utterances = Sequence[kinds.Utterance]
# Frames of silence between the digits of a string: 50 to 150 ms.
_GAP = (5, 15)
_EVALUATED_AT_ONCE = 32


@dataclass(frozen=True, kw_only=True)
class Speech:
    """Write down what is said: strings of digits, or the spelled words of AN4; judged by the word error rate."""

    name: ClassVar[str] = "speech"

    data: str = "dial-tones"
    """dial-tones (no download), fsdd, an4, an4-mini."""
    hidden: int = 96
    """Cells of an LSTM layer in each direction."""
    layers: int = 2
    """LSTM layers."""
    stride: int | None = None
    """Frames of 10 ms that become one step of the LSTM; by default 4 for digits, 2 for letters."""
    split: str = "iid"
    """How recordings are shared out over ranks: iid, similarity:S (S in percent), dirichlet:A or speaker; the label
    of a recording is its first word."""
    held_out: str | None = None
    """A speaker to test on, with all of the recordings; the others are trained on."""
    digits_min: int = 2
    """Digits of the shortest string; sets of single digits only."""
    digits_max: int = 5
    """Digits of the longest string."""
    train_strings: int = 800
    """Strings of digits in an epoch, over all ranks; each is put together anew."""

    def __post_init__(self) -> None:
        for name, usual in (("hidden", 96), ("layers", 2), ("digits_min", 2), ("train_strings", 800)):
            check_whole(name, getattr(self, name), 1, f"Write --{name.replace('_', '-')} {usual}.")
        check_whole("digits_max", self.digits_max, self.digits_min, f"Write --digits-max {self.digits_min + 3}.")
        if self.stride is not None:
            check_whole("stride", self.stride, 1, "Write --stride 2.")
        check_split(self.split)

    def settled(self) -> Speech:
        """Return this task with what it settles by itself."""
        letters = self.data in ("an4", "an4-mini")
        return self if self.stride else replace(self, stride=2 if letters else 4)

    def choice(self) -> Training:
        """Return settings that reach a low word error rate in a few minutes on a core.

        First the recognizer learns that most of time is blank, and for some hundred steps nothing seems to happen:
        the number of steps matters, not that of epochs.
        """
        common = Training(
            batch=8, optimizer="sgd", rate=0.2, momentum=0.9, decay=0.0, clip=1.0, schedule="linear", final=0.05,
            warmup=20,
        )  # fmt: skip
        if self.data in ("an4", "an4-mini"):
            return Training(epochs=40.0, batch=4 if self.data == "an4-mini" else 8, rate=0.1).filled(common)
        return Training(steps=400 if self.data == "dial-tones" else 600).filled(common)

    def prepare(self, place: Place) -> SpeechWork:
        """Load the recordings, share them out, compute features and build the model."""
        data = load(self.data, place.data_home)
        if not isinstance(data, kinds.Speech):
            raise ValueError(f"speech wants recordings; {self.data!r} is {kind_of(data)}. Try --data dial-tones.")
        return SpeechWork(self, held_out(data, self.held_out), place)


@dataclass(frozen=True, kw_only=True)
class SpeechBatch:
    """Frames [number, longest, bands], the longest first; lengths in frames; what is said, as labels and words."""

    frames: Tensor
    lengths: list[int]
    targets: list[list[int]]
    words: list[list[str]]


@dataclass(frozen=True, kw_only=True)
class Said:
    """One example: rows of ``Frames`` and the words said in them."""

    rows: NDArray[np.int64]
    words: list[str]


class SpeechWork:
    """Features of this rank's recordings and of its share of the test, on the device."""

    metric = Metric(name="word error rate", lower_is_better=True)
    splits: tuple[str, ...] = ("test",)

    def __init__(self, task: Speech, data: kinds.Speech, place: Place) -> None:
        words = [word for one in (*data.train, *data.test) for word in one.words.split()]
        self._alphabet = Alphabet(words if data.digits else None)
        self._place, self._task, self._digits = place, task, data.digits
        parts = _parts(task, data.train, place)
        self._train = [data.train[i] for i in parts[place.rank]]
        self._frames = _frames(self._train, data.rate, place)
        if data.digits:
            self.steps_per_epoch = _steps(task, place)
            self._same_speaker = _same_speaker(self._train)
        else:
            everyone = [np.arange(len(part)) for part in parts]
            self._order = Order(everyone, batch=place.batch, seed=place.seed, rank=place.rank)
            self.steps_per_epoch = self._order.steps_per_epoch
        self._prepare_test(data)
        net = Recognizer(
            bands=BANDS,
            labels=self._alphabet.size,
            hidden=task.hidden,
            layers=task.layers,
            stride=task.settled().stride or 1,
        )
        self.model: nn.Module = net.to(place.device)
        self._steps_of_time = net.steps_of_time

    def _prepare_test(self, data: kinds.Speech) -> None:
        strings = strings_of(data.test, self._task) if data.digits else [[i] for i in range(len(data.test))]
        mine = strings[self._place.rank :: self._place.ranks]
        needed = sorted({i for string in mine for i in string})
        self._test_frames = _frames([data.test[i] for i in needed], data.rate, self._place)
        place_of = {number: place for place, number in enumerate(needed)}
        draw = np.random.default_rng(0)
        gaps = [draw.integers(_GAP[0], _GAP[1] + 1, size=len(string)) for string in strings]
        self._test = [
            Said(
                rows=self._test_frames.string([place_of[i] for i in string], gap),
                words=[word for i in string for word in data.test[i].words.split()],
            )
            for string, gap in zip(mine, gaps[self._place.rank :: self._place.ranks], strict=True)
        ]

    def batch(self, step: int) -> SpeechBatch:
        """Return this rank's strings or utterances of a step."""
        if self._digits:
            draw = np.random.default_rng(seed_for(self._place.seed, "order", self._place.rank, step))
            said = [self._string(draw) for _ in range(self._place.batch)]
        else:
            said = [
                Said(rows=self._frames.recording(i), words=self._train[i].words.split())
                for i in self._order.indices(step)
            ]
        return self._batch(self._frames, said)

    def loss(self, model: nn.Module, batch: SpeechBatch) -> Tensor:
        """Return the CTC loss a label, in the mean over utterances."""
        log_probs = model(batch.frames, batch.lengths)
        return ctc_losses(log_probs, self._times(batch), batch.targets).mean()

    @torch.no_grad()
    def evaluate(self, split: str) -> Tally:
        """Count the word errors in this rank's share of the test; ``scored`` counts the words said."""
        check_choice("split", split, self.splits)
        loss, errors, words = 0.0, 0, 0
        self.model.eval()
        for first in range(0, len(self._test), _EVALUATED_AT_ONCE):
            batch = self._batch(self._test_frames, self._test[first : first + _EVALUATED_AT_ONCE])
            log_probs = self.model(batch.frames, batch.lengths)
            loss += float(ctc_losses(log_probs, self._times(batch), batch.targets).sum())
            for said, labels in zip(batch.words, greedy(log_probs, self._times(batch)), strict=True):
                errors += word_errors(said, self._alphabet.words(labels))
                words += len(said)
        self.model.train()
        return Tally(loss=loss, examples=len(self._test), score=errors, scored=words)

    def state_dict(self) -> dict[str, Any]:
        """A step leaves nothing behind but the model."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """There is nothing to go on from but the model."""

    def _string(self, draw: np.random.Generator) -> Said:
        """Draw a recording, and more of the same speaker."""
        number = int(draw.integers(self._task.digits_min, self._task.digits_max + 1))
        first = int(draw.integers(len(self._train)))
        which = [first, *draw.choice(self._same_speaker[self._train[first].speaker], size=number - 1)]
        gaps = draw.integers(_GAP[0], _GAP[1] + 1, size=number)
        words = [word for i in which for word in self._train[i].words.split()]
        return Said(rows=self._frames.string(which, gaps), words=words)

    def _batch(self, frames: Frames, said: Sequence[Said]) -> SpeechBatch:
        said = sorted(said, key=lambda one: -len(one.rows))
        return SpeechBatch(
            frames=frames.batch([one.rows for one in said]),
            lengths=[len(one.rows) for one in said],
            targets=[self._alphabet.labels(one.words) for one in said],
            words=[one.words for one in said],
        )

    def _times(self, batch: SpeechBatch) -> list[int]:
        return [self._steps_of_time(length) for length in batch.lengths]


def held_out(data: kinds.Speech, speaker: str | None) -> kinds.Speech:
    """Return the data with all of a speaker's recordings to test on, and none of them to train on."""
    if speaker is None:
        return data
    everyone = sorted({one.speaker for one in (*data.train, *data.test)})
    if speaker not in everyone or len(everyone) < 2:
        raise ValueError(
            f"held_out must be a speaker of {data.name}, got {speaker!r}. There is: {', '.join(everyone)}."
        )
    return kinds.Speech(
        name=data.name,
        rate=data.rate,
        train=tuple(one for one in data.train if one.speaker != speaker),
        test=tuple(one for one in (*data.train, *data.test) if one.speaker == speaker),
        digits=data.digits,
    )


def strings_of(recordings: Utterances, task: Speech) -> list[list[int]]:
    """Return strings that use each recording once, each of one speaker: the same in every run.

    A speaker's last string has what is left, and may be shorter than ``digits_min``.
    """
    draw = np.random.default_rng(0)
    strings = []
    for mine in _same_speaker(recordings).values():
        left = [int(i) for i in draw.permutation(mine)]
        while left:
            number = int(draw.integers(task.digits_min, task.digits_max + 1))
            strings.append(left[:number])
            left = left[number:]
    return strings


def _same_speaker(recordings: Utterances) -> dict[str, list[int]]:
    mine: dict[str, list[int]] = {}
    for number, one in enumerate(recordings):
        mine.setdefault(one.speaker, []).append(number)
    return mine


def _parts(task: Speech, train: Utterances, place: Place) -> list[NDArray[np.int64]]:
    _, labels = np.unique([one.words.partition(" ")[0] for one in train], return_inverse=True)
    speakers = [one.speaker for one in train]
    return split(task.split, ranks=place.ranks, seed=place.seed, labels=labels, speakers=speakers)


def _frames(recordings: Utterances, rate: int, place: Place) -> Frames:
    return frames_of([one.samples for one in recordings], rate=rate, device=place.device)


def _steps(task: Speech, place: Place) -> int:
    steps = task.train_strings // (place.ranks * place.batch)
    if steps < 1:
        raise ValueError(
            f"train_strings must be at least a batch on every rank, {place.ranks} x {place.batch}; "
            f"got {task.train_strings}. Write --train-strings {place.ranks * place.batch * 10}."
        )
    return steps
