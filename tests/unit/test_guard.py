"""The guard: an alarm that rises and rests, and warnings that are said once, by one rank."""

from __future__ import annotations

import dataclasses
import math
import warnings
from dataclasses import replace

import pytest

from contracts.bad_settings import BAD_SETTINGS, refusal
from laconic.guard import Alarm, Guard
from laconic.types import Observation

SEEN = Observation(step=8, entries=100, sent=10, wanted=10, skipped=False)
GUARD = Guard(limit=10.0, every=5, skipped=3)


def _heard(alarm: Alarm, *history: Observation) -> list[str]:
    """What was said while these were heard."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for seen in history:
            alarm.hear(seen)
    return [str(w.message) for w in said]


def test_norms_are_compared_every_few_steps():
    alarm = Alarm(GUARD, rank=0)
    assert [step for step in range(16) if alarm.due(step)] == [4, 9, 14]
    assert [step for step in range(3) if Alarm(Guard(every=1), rank=0).due(step)] == [0, 1, 2]
    assert not any(Alarm(None, rank=0).due(step) for step in range(100))


def test_an_alarm_rises_beyond_the_limit_and_rests_below_half_of_it():
    alarm, states = Alarm(GUARD, rank=1), []
    for owed in (5.0, 10.0, 10.1, 9.0, 5.1, 4.9, 9.0, 11.0):
        alarm.look(owed=owed, fresh=1.0)
        states.append(alarm.raised)
    assert states == [False, False, True, True, True, False, False, True]


def test_a_run_whose_gradients_shrink_is_not_alarmed_at_once_but_in_the_end():
    """A rate that falls to zero shrinks fresh updates before what is owed."""
    alarm = Alarm(GUARD, rank=0)
    alarm.look(owed=8.0, fresh=1.0)
    alarm.look(owed=8.0, fresh=0.01)
    assert not alarm.raised
    looks = 0
    while not alarm.raised and looks < 1000:
        alarm.look(owed=8.0, fresh=0.01)
        looks += 1
    # After a thousand steps or so an old gradient is forgotten.
    assert 10 < looks * GUARD.every < 2000


def test_one_rare_large_gradient_does_not_hide_a_runaway_for_ever():
    alarm = Alarm(GUARD, rank=0)
    alarm.look(owed=1.0, fresh=100.0)
    for _ in range(2000):
        alarm.look(owed=500.0, fresh=1.0)
    assert alarm.raised


def test_nothing_owed_is_no_alarm_even_where_nothing_is_fresh():
    alarm = Alarm(GUARD, rank=0)
    alarm.look(owed=0.0, fresh=0.0)
    assert not alarm.raised


def test_an_alarm_on_any_rank_is_said_once_by_the_first_rank_with_what_to_do():
    alarmed = replace(SEEN, alarmed=True)
    (said,) = _heard(Alarm(GUARD, rank=0), SEEN, alarmed, alarmed, SEEN, alarmed)
    assert said.startswith("laconic: at step 8 what some rank owes is more than 10 of its gradients")
    assert "Send more (a larger density; for sdagc a smaller c, or fallback=True)" in said
    assert _heard(Alarm(GUARD, rank=1), alarmed, alarmed) == []


def test_an_infinite_loss_is_said_once_with_its_step():
    lost = replace(SEEN, loss=math.inf)
    (said,) = _heard(Alarm(GUARD, rank=0), lost, replace(lost, loss=-math.inf))
    assert said.startswith("laconic: the loss was not finite at step 7. Lower the learning rate")
    assert _heard(Alarm(GUARD, rank=2), lost) == []


@pytest.mark.parametrize("loss", [math.nan, 0.0, -3.0, 1e300])
def test_a_loss_that_was_not_told_or_is_finite_is_not_spoken_of(loss):
    assert _heard(Alarm(GUARD, rank=0), replace(SEEN, loss=loss)) == []


def test_steps_that_are_skipped_in_a_row_are_said_once():
    bad = replace(SEEN, skipped=True)
    assert _heard(Alarm(GUARD, rank=0), bad, bad, SEEN, bad, bad, SEEN) == []
    (said,) = _heard(Alarm(GUARD, rank=0), bad, bad, replace(bad, step=10), bad, SEEN, bad, bad, bad)
    assert said.startswith("laconic: 3 steps up to step 9 were skipped in a row: gradients are not finite")
    assert _heard(Alarm(GUARD, rank=1), bad, bad, bad) == []


def test_a_loss_scaler_may_look_for_its_scale_before_skipped_steps_are_spoken_of():
    """A scaler halves its scale in every step that it skips, from 2^16 down to 1."""
    bad, halvings = replace(SEEN, skipped=True), 16
    assert _heard(Alarm(Guard(), rank=0), *[bad] * halvings) == []
    assert len(_heard(Alarm(Guard(), rank=0), *[bad] * 4 * halvings)) == 1


def test_kinds_are_said_apart():
    bad = replace(SEEN, skipped=True, alarmed=True, loss=math.inf)
    assert len(_heard(Alarm(replace(GUARD, skipped=1), rank=0), bad, bad)) == 3


def test_without_a_guard_nothing_is_said_and_skipped_steps_are_still_counted():
    alarm, bad = Alarm(None, rank=0), replace(SEEN, skipped=True, alarmed=True, loss=math.inf)
    assert _heard(alarm, *[bad] * 9) == []
    assert alarm.skipped_in_a_row == 9
    alarm.hear(SEEN)
    assert alarm.skipped_in_a_row == 0


def test_a_saved_alarm_goes_on():
    first, second = Alarm(GUARD, rank=0), Alarm(GUARD, rank=0)
    first.look(owed=60.0, fresh=3.0)
    first.hear(replace(SEEN, skipped=True))
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == first.state_dict()
    assert (second.raised, second.skipped_in_a_row) == (True, 1)
    for alarm in (first, second):
        # Still remembers the gradient of 3: 18 is over half of the limit, 12 is not.
        alarm.look(owed=18.0, fresh=0.1)
        assert alarm.raised
        alarm.look(owed=12.0, fresh=0.1)
        assert not alarm.raised


def test_a_saved_alarm_that_lacks_something_is_refused():
    alarm = Alarm(GUARD, rank=0)
    alarm.check(alarm.state_dict())
    for kind in alarm.state_dict():
        rest = {key: value for key, value in alarm.state_dict().items() if key != kind}
        with pytest.raises(ValueError, match=rf"the saved alarm lacks \['{kind}'\]"):
            alarm.check(rest)


@pytest.mark.parametrize(("field", "value"), BAD_SETTINGS[Guard])
def test_a_bad_setting_is_refused_with_what_it_got_what_it_wants_and_what_to_do(field, value):
    with pytest.raises(ValueError, match=refusal(field, value)):
        Guard(**{field: value})


def test_every_setting_has_a_bad_value_that_is_refused():
    assert {field for field, _ in BAD_SETTINGS[Guard]} == {f.name for f in dataclasses.fields(Guard)}
