"""Text foretold token by token: LSTMs and a small transformer."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from laconic.arguments import check_choice, check_number, check_whole
from laconic.lab.data import kinds
from laconic.lab.data.content import kind_of
from laconic.lab.data.store import load
from laconic.lab.data.text_files import load_folder_text
from laconic.lab.models.awd import AWD, Drops
from laconic.lab.models.gpt import GPT
from laconic.lab.models.lstm import LSTM, Reading, State
from laconic.lab.training import Training
from laconic.lab.vocabulary import Level, Vocabulary
from laconic.lab.work import Metric, Place, Tally

ModelName = Literal["lstm", "awd", "gpt"]
_TEXTS: dict[str, Level] = {"python-docs": "char", "ptb": "word", "wikitext-2": "word"}
_EVALUATED_STREAMS = 16


@dataclass(frozen=True, kw_only=True)
class Lm:
    """Foretell text with an LSTM or a transformer: Python's documentation, PTB, WikiText-2 or a folder of text.

    Judged by perplexity a word or bits a character.
    """

    name: ClassVar[str] = "lm"

    data: str = "python-docs"
    """python-docs (no download), ptb, wikitext-2, or a folder of text."""
    model: ModelName = "lstm"
    """lstm (Zaremba et al. 2014), awd (AWD-LSTM, Merity et al. 2017) or gpt (a small transformer)."""
    level: Level | None = None
    """What a token is: char or word. By default words for ptb and wikitext-2, else characters."""
    length: int | None = None
    """Tokens a stream and step; gpt sees no further back than that."""
    layers: int | None = None
    """Layers of the model."""
    hidden: int | None = None
    """Width of the layers."""
    embedding: int | None = None
    """Width of the embedding; gpt has but one width, hidden."""
    dropout: float | None = None
    """Share that is dropped; of awd at its output, its other shares in proportion (0.4: as published)."""
    tied: bool | None = None
    """Whether embedding and softmax share their weights."""

    def __post_init__(self) -> None:
        check_choice("model", self.model, ("lstm", "awd", "gpt"))
        if self.level is not None:
            check_choice("level", self.level, ("char", "word"))
        for name in ("length", "layers", "hidden", "embedding"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), 1, f"Write --{name} 2, say.")
        if self.dropout is not None:
            check_number("dropout", self.dropout, 0.0, "Write --dropout 0.1.")
            most = 0.8 if self.model == "awd" else 1.0
            if self.dropout >= most:
                raise ValueError(f"dropout of {self.model} must be in [0, {most:g}), got {self.dropout}.")
        if self.model == "gpt" and self.embedding not in (None, self.hidden):
            raise ValueError(f"gpt has one width, got embedding {self.embedding}. Write --hidden {self.embedding}.")

    @property
    def tokens(self) -> Level:
        """What a token is, settled."""
        return self.level or _TEXTS.get(self.data, "char")

    def settled(self) -> Lm:
        """Return this task with the model's own sizes where none were given."""
        words = self.tokens == "word"
        lengths = {("lstm", "char"): 48, ("lstm", "word"): 35, ("gpt", "char"): 128, ("gpt", "word"): 64}
        if self.model == "gpt":
            usual = Lm(layers=4, hidden=128, dropout=0.0, tied=True)
        elif self.model == "awd":
            usual = Lm(layers=3, hidden=1150, embedding=400, dropout=Drops().output, tied=True)
        else:
            usual = Lm(
                layers=2 if words else 1, hidden=200 if words else 256, dropout=0.1 if words else 0.0, tied=False
            )
        usual = replace(usual, level=self.tokens, length=lengths.get((self.model, self.tokens), 70))
        given = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}
        if self.data not in _TEXTS and Path(self.data).is_dir():
            # A run that goes on may be started from elsewhere.
            given["data"] = str(Path(self.data).resolve())
        mine = replace(usual, **given)
        square = self.model == "gpt" or words or mine.tied
        return mine if mine.embedding else replace(mine, embedding=mine.hidden if square else 64)

    def choice(self) -> Training:
        """Return rates and clips that were found for gradients of mean losses; characters train for few steps.

        awd is trained on words as CELGC's authors do (rate 30, clip 0.25, decay 1.2e-6), for fewer epochs.
        """
        common = Training(
            batch=8, optimizer="sgd", rate=8.0, momentum=0.0, decay=0.0, clip=1.0, schedule="constant", final=0.02,
            warmup=0,
        )  # fmt: skip
        if self.model == "gpt":
            ours = Training(
                batch=8, optimizer="adamw", rate=1e-3, decay=0.01, schedule="cosine", warmup=50, final=0.1
            )
        elif self.tokens == "word":
            ours = Training(batch=5, rate=30.0, clip=0.25, schedule="linear")
        else:
            ours = common
        if self.model == "awd":
            ours = replace(ours, decay=1.2e-6)
        length = Training(epochs=10.0 if self.model == "awd" else 3.0)
        return ours.filled(common).filled(Training(steps=600) if self.tokens == "char" else length)

    def build(self, vocabulary: int) -> nn.Module:
        """Return the model for a vocabulary of a size."""
        me = self.settled()
        # Settled, none is None.
        length, layers, hidden, embedding = (int(n or 0) for n in (me.length, me.layers, me.hidden, me.embedding))
        dropout, tied = me.dropout or 0.0, bool(me.tied)
        if me.model == "gpt":
            return GPT(vocabulary, window=length, width=hidden, layers=layers, dropout=dropout, tied=tied)
        if me.model == "awd":
            drops = Drops().scaled(dropout / Drops().output)
            return AWD(vocabulary, embedding=embedding, hidden=hidden, layers=layers, tied=tied, drops=drops)
        return LSTM(
            vocabulary, embedding=embedding, hidden=hidden, layers=layers, dropout=dropout, tied=tied,
            spread=0.1 if me.tokens == "word" else None,
        )  # fmt: skip

    def prepare(self, place: Place) -> LmWork:
        """Read the text, cut it in streams and build the model."""
        return LmWork(self, _text(self.data, place.data_home), place)


@dataclass(frozen=True, kw_only=True)
class Window:
    """Tokens [streams, length] and those that follow them; ``first``: the walk along the streams begins here."""

    tokens: Tensor
    targets: Tensor
    first: bool


@dataclass(frozen=True, kw_only=True)
class Codes:
    """A text as numbers, of a vocabulary of a size: to train on, and what there is to score."""

    vocabulary: int
    train: Tensor
    scored: dict[str, Tensor]


def coded(text: kinds.Text, level: Level) -> Codes:
    """Read a text as numbers; words that are not in its training part are one number."""
    parts = {"valid": text.valid, "test": text.test}
    if level == "char":
        vocabulary = Vocabulary.of_characters([text.train, *parts.values()])
    else:
        vocabulary = Vocabulary.of_words(text.train)
    return Codes(
        vocabulary=len(vocabulary),
        train=torch.from_numpy(vocabulary.encode(text.train)),
        scored={name: torch.from_numpy(vocabulary.encode(part)) for name, part in parts.items() if part},
    )


class LmWork:
    """The training text is cut in ranks x batch parallel streams; a rank walks along its own, window by window.

    What the model remembers is kept from window to window, and forgotten when the walk begins again.
    """

    def __init__(self, task: Lm, text: kinds.Text, place: Place) -> None:
        if task.tokens == "char":
            self.metric = Metric(name="bits per character", lower_is_better=True)
            self._unit = math.log(2)
        else:
            self.metric = Metric(name="perplexity", lower_is_better=True, exponential=True)
            self._unit = 1.0
        codes = coded(text, task.tokens)
        self._place, self._length = place, task.settled().length or 1
        rows = _streams(codes.train, place.ranks * place.batch)[place.rank * place.batch :][: place.batch]
        # A view would keep the whole text, once for every rank that shares a process.
        self._rows = rows.clone().to(place.device)
        self.steps_per_epoch = _windows(rows.shape[1], self._length)
        self._scored = codes.scored
        self.splits: tuple[str, ...] = tuple(name for name, part in self._scored.items() if len(part) > 1)
        if "valid" not in self.splits:
            raise ValueError(
                f"{text.name} has no text to validate on. Give it two tokens or more in its valid part."
            )
        self.model: nn.Module = task.build(codes.vocabulary).to(place.device)
        self._state: State | None = None

    def batch(self, step: int) -> Window:
        """Return the window of a step: a function of the step alone."""
        within = step % self.steps_per_epoch
        start, end = within * self._length, (within + 1) * self._length
        return Window(
            tokens=self._rows[:, start:end], targets=self._rows[:, start + 1 : end + 1], first=within == 0
        )

    def loss(self, model: nn.Module, batch: Window) -> Tensor:
        """Return the mean cross-entropy in nats a token, with the model's own penalty; keep what it remembers."""
        reading: Reading = model(batch.tokens, None if batch.first else self._state)
        self._state = tuple(tensor.detach() for tensor in reading.state)
        loss = functional.cross_entropy(reading.scores.flatten(0, 1), batch.targets.flatten())
        return loss if reading.penalty is None else loss + reading.penalty

    @torch.no_grad()
    def evaluate(self, split: str) -> Tally:
        """Score every token but the first, along 16 streams whatever the number of ranks; a rank has its share."""
        codes = self._scored[split]
        number = min(_EVALUATED_STREAMS, len(codes) - 1)
        mine = slice(self._place.rank, None, self._place.ranks)
        # Streams overlap by one token: a stream's last target is the first of the next.
        tokens = _streams(codes[:-1], number)[mine].to(self._place.device)
        targets = _streams(codes[1:], number)[mine].to(self._place.device)
        # Read once, at the end: to read a number is to wait for the GPU.
        sum_of_nats, state = torch.zeros((), dtype=torch.float64, device=self._place.device), None
        self.model.eval()
        for x, y in zip(tokens.split(self._length, 1), targets.split(self._length, 1), strict=True):
            if not len(tokens):
                break
            reading: Reading = self.model(x, state)
            state = reading.state
            sum_of_nats += functional.cross_entropy(reading.scores.flatten(0, 1), y.flatten(), reduction="sum")
        self.model.train()
        nats = float(sum_of_nats)
        return Tally(loss=nats, examples=tokens.numel(), score=nats / self._unit, scored=tokens.numel())

    def state_dict(self) -> dict[str, Any]:
        """Return what the model remembers of the window before."""
        return {"state": None if self._state is None else list(self._state)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Remember that."""
        kept = state["state"]
        self._state = None if kept is None else tuple(tensor.to(self._place.device) for tensor in kept)


def _text(data: str, home: Path) -> kinds.Text:
    """Return a set by name, or a folder of text where there is no such name of ours."""
    if data not in _TEXTS and (len(Path(data).parts) > 1 or Path(data).is_dir()):
        return load_folder_text(Path(data))
    found = load(data, home)
    if not isinstance(found, kinds.Text):
        raise ValueError(f"lm wants text; {data!r} is {kind_of(found)}. Try --data python-docs.")
    return found


def _streams(codes: Tensor, number: int) -> Tensor:
    """Cut tokens in parallel streams, one a row; what is left over at the end is dropped."""
    length = len(codes) // number
    return codes[: number * length].view(number, length)


def _windows(stream: int, length: int) -> int:
    """Return how many windows a stream has, each with the token that follows it."""
    if stream < length + 1:
        raise ValueError(
            f"a stream has {stream} tokens, a window of {length} needs {length + 1}. "
            f"Use fewer workers, a smaller batch (--batch) or a shorter window (--length)."
        )
    return (stream - 1) // length
