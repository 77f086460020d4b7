"""How often are verdicts on arms wrong, and what do they find? `python -m bench.calibration [--quick]`.

Synthetic experiments through tasks/stats/effect and sequential: nothing is measured, everything is known. An experiment
is mirrored blocks of deployments of control and arm, judged on four indicators that move together (correlation 0.5,
as a slow deployment is slow in all of them) and are corrected by Holm. A deployment's value is its truth times a
lognormal of the stated coefficient of variation; the machine drifts by DRIFT per deployment, in a direction that each
experiment draws. The noise floor is from the control's own deployments of the experiment.

    A/A           both are the control: BETTER or WORSE on any indicator is an error. Binomial: it must not be over 5 %
    power         the arm is 10 % slower in one indicator: how often that one is called WORSE
    equivalent    the arm is slower by exactly the margin of 5 % in all: EQUIVALENT on the first one is an error
    sequential    looks after 4, 6 and 8 repeats: errors in A/A, and on an arm that is 25 % slower the share of 8
                  repeats that were not run

Heavy tails (Student's t of 4 degrees, same variance) are shown beside the lognormal. The last line is JSON.
"""

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from tasks.stats import effect, sequential

INDICATORS, TOGETHER, DRIFT, MARGIN = 4, 0.5, 0.002, 0.05
CVS, REPEATS, LOOKS = (0.015, 0.03), (4, 6, 8), (4, 6, 8)
TAIL = 4  # degrees of freedom
Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class World:
    """What is true: `cv` between deployments of one arm; `ratios` of the arm's indicators to the control's."""

    cv: float
    ratios: tuple[float, ...] = (1.0,) * INDICATORS
    is_heavy: bool = False


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.calibration", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="200 experiments of each kind instead of 2,000")
    count = 200 if parser.parse_args().quick else 2000
    rows = []
    for cv in CVS:
        for repeats in REPEATS:
            rows.append(_row(cv, repeats, count))
            print("\n".join(_said(rows[-1], count)), flush=True)
    told = {"bench": "calibration", "experiments": count} | _summary(rows, count)
    for cv in CVS:
        errors, saved = _sequential(cv, count)
        print(f"cv {cv:.1%}, looks after {LOOKS}: A/A error {_share(errors, count)}; saved on +25 %: {saved:.0%}")
        told |= {f"sequential_error_{cv:g}": errors / count, f"saved_{cv:g}": round(saved, 3)}
    print(json.dumps(told | {"saved": min(told[f"saved_{cv:g}"] for cv in CVS)}))


def _row(cv: float, repeats: int, count: int) -> dict[str, Any]:
    """Counts of `count` experiments each."""
    one, all_of_them = (1.10, *(1.0,) * (INDICATORS - 1)), (1 + MARGIN,) * INDICATORS
    rng = np.random.default_rng(20261201 + repeats + int(1e4 * cv))
    return {
        "cv": cv,
        "repeats": repeats,
        "aa": _count(World(cv), repeats, count, rng, is_error),
        "aa_heavy": _count(World(cv, is_heavy=True), repeats, count, rng, is_error),
        "power": _count(World(cv, one), repeats, count, rng, is_found),
        "equivalent": _count(World(cv, all_of_them), repeats, count, rng, is_called_equivalent),
    }


def _count(world: World, repeats: int, count: int, rng: np.random.Generator, what: Any) -> int:
    return sum(what(verdicts(played(world, repeats, rng))) for _ in range(count))


def is_error(found: Sequence[effect.Compared]) -> bool:
    return any(one.outcome in ("BETTER", "WORSE") for one in found)


def is_found(found: Sequence[effect.Compared]) -> bool:
    return found[0].outcome == "WORSE"


def is_called_equivalent(found: Sequence[effect.Compared]) -> bool:
    return found[0].outcome == "EQUIVALENT"


def played(world: World, repeats: int, rng: np.random.Generator) -> Array:
    """Values of one experiment: (repeats, 2: control and arm, INDICATORS), ms."""
    n = 2 * repeats
    shared, own = (_noise(world, (n, k), rng) for k in (1, INDICATORS))
    logs = math.sqrt(TOGETHER) * shared + math.sqrt(1 - TOGETHER) * own
    logs += np.arange(n)[:, None] * rng.choice([-DRIFT, DRIFT])
    found = 1000.0 * np.exp(logs.reshape(repeats, 2, INDICATORS))
    found[1::2] = found[1::2, ::-1]  # mirrored: every other pair began with the arm
    found[:, 1, :] *= world.ratios
    return found


def _noise(world: World, shape: tuple[int, int], rng: np.random.Generator) -> Array:
    sigma = math.sqrt(math.log1p(world.cv**2))
    if world.is_heavy:
        return sigma * math.sqrt((TAIL - 2) / TAIL) * rng.standard_t(TAIL, shape)
    return sigma * rng.standard_normal(shape)


def verdicts(values: Array, error: float = effect.ERROR) -> list[effect.Compared]:
    """On each indicator, all corrected together."""
    series = [values[:, :, i] for i in range(values.shape[2])]
    effects = [effect.paired([(c, a) for c, a in one], error=error) for one in series]
    floors = [effect.floor([one[:, 0]], len(one)) for one in series]
    ps = effect.holm([one.p for one in effects])
    return [
        effect.judged(one, p, floor, better="lower", margin=MARGIN, error=error)
        for one, p, floor in zip(effects, ps, floors, strict=True)
    ]


def _sequential(cv: float, count: int) -> tuple[int, float]:
    """Experiments without an effect that stopped with one, and the mean share of repeats saved on a clear effect."""
    rng = np.random.default_rng(7 + int(1e4 * cv))
    errors = sum(_stopped(played(World(cv), LOOKS[-1], rng))[1] for _ in range(count))
    clear = World(cv, (1.25, *(1.0,) * (INDICATORS - 1)))
    ran = [_stopped(played(clear, LOOKS[-1], rng))[0] for _ in range(count)]
    return errors, 1 - float(np.mean(ran)) / LOOKS[-1]


def _stopped(values: Array) -> tuple[int, bool]:
    """(repeats run, whether an effect was told)."""
    error = sequential.level(LOOKS)
    for repeats in LOOKS:
        if is_error(verdicts(values[:repeats], error)):
            return repeats, True
    return LOOKS[-1], False


def _share(k: int, n: int) -> str:
    return f"{k / n:.2%} (p that it is at most 5 %: {_p(k, n):.2f})"


def _p(k: int, n: int) -> float:
    """Of as many errors or more, if the rate were 5 %."""
    return float(stats.binomtest(k, n, 0.05, alternative="greater").pvalue)


def _said(row: dict[str, Any], count: int) -> Iterator[str]:
    yield f"cv {row['cv']:.1%}, {row['repeats']} repeats:"
    yield f"  A/A error {_share(row['aa'], count)}; heavy tails {_share(row['aa_heavy'], count)}"
    yield f"  +10 % found {row['power'] / count:.1%}; EQUIVALENT at the margin {_share(row['equivalent'], count)}"


def _summary(rows: Sequence[dict[str, Any]], count: int) -> dict[str, Any]:
    """The worst of each error, and the power that the project promises: 6 repeats at 3 %."""
    worst = {name: max(row[name] for row in rows) for name in ("aa", "aa_heavy", "equivalent")}
    power = next(row["power"] for row in rows if (row["cv"], row["repeats"]) == (0.03, 6))
    return {
        "aa_error": worst["aa"] / count,
        "aa_error_heavy_tails": worst["aa_heavy"] / count,
        "power_10pct": power / count,
        "equivalent_error": worst["equivalent"] / count,
        "least_p": min(_p(k, count) for k in (worst["aa"], worst["aa_heavy"], worst["equivalent"])),
    }


if __name__ == "__main__":
    main()
