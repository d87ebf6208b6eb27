"""Plain arguments: what is refused is told with what it got, what is wanted and what to write."""

from __future__ import annotations

import pytest

from laconic.arguments import check_choice, check_number, check_share, check_whole


@pytest.mark.parametrize("value", [1e-300, 0.5, 1, 1.0])
def test_a_share_is_a_number_above_zero_and_at_most_one(value):
    check_share("density", value, "Write 0.1.")


@pytest.mark.parametrize("value", [0, 0.0, -1.0, 1.0000001, float("nan"), float("inf"), "0.1", True, None, [0.1]])
def test_what_is_no_share_is_refused(value):
    with pytest.raises(ValueError, match=r"density must be a number in \(0, 1\], got .*\. Write 0\.1\.") as refusal:
        check_share("density", value, "Write 0.1.")
    assert repr(value) in str(refusal.value)


@pytest.mark.parametrize("value", [0.5, 1, 1e300, 10**9])
def test_a_number_is_finite_and_at_least_the_least(value):
    check_number("c", value, 0.5, "Write 1.")


@pytest.mark.parametrize(
    "value", [0.49, -1, float("nan"), float("inf"), float("-inf"), "1", True, None, [1.0], 1j], ids=repr
)
def test_what_is_no_number_or_too_small_is_refused(value):
    with pytest.raises(
        ValueError, match=r"c must be a finite number of 0\.5 or more, got .*\. Write 1\."
    ) as refusal:
        check_number("c", value, 0.5, "Write 1.")
    assert repr(value) in str(refusal.value)


@pytest.mark.parametrize("value", [3, 4, 10**30])
def test_a_whole_number_is_at_least_the_least(value):
    check_whole("steps", value, 3, "Write 3.")


@pytest.mark.parametrize("value", [2, -3, 3.0, "3", True, None])
def test_what_is_no_whole_number_or_too_small_is_refused(value):
    with pytest.raises(
        ValueError, match=r"steps must be a whole number of 3 or more, got .*\. Write 3\."
    ) as refusal:
        check_whole("steps", value, 3, "Write 3.")
    assert repr(value) in str(refusal.value)


@pytest.mark.parametrize("value", ["c", "", None, ["a"], 1])
def test_what_is_no_choice_is_refused_with_the_choices(value):
    check_choice("scope", "a", ("a", "b"))
    with pytest.raises(ValueError, match=r"scope must be one of a, b; got ") as refusal:
        check_choice("scope", value, ("a", "b"))
    assert repr(value) in str(refusal.value)
