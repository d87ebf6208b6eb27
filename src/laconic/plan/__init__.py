"""Will it pay on my network? What each method would make of a step, from what was measured and a link."""

from laconic.plan.advise import Advice, advise
from laconic.plan.facts import Facts, Host, Job, Profile, Rehearsal, Rehearsed, Round
from laconic.plan.predict import Link, Prediction, predict
from laconic.plan.work import Subject

__all__ = [
    "Advice",
    "Facts",
    "Host",
    "Job",
    "Link",
    "Prediction",
    "Profile",
    "Rehearsal",
    "Rehearsed",
    "Round",
    "Subject",
    "advise",
    "predict",
]
