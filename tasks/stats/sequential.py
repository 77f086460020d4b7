"""May a plan stop early because its verdict is certain? Looks after whole blocks, and 5 % over all of them.

Who looks at 5 % after every block and stops at the first p below it is wrong far more often than 5 % (about 11 % with
three looks). So every look has the same smaller level, chosen so that all looks together err in 5 % (Pocock, Biometrika
64, 1977): the means after n1 < n2 < ... pairs are correlated as sqrt(ni / nj), and the level is that of the z which
none of them exceeds with 95 %. The levels are used on Student's p, as Jennison and Turnbull do (Group Sequential
Methods, 2000, section 4.4), which keeps the error closely; how closely at these few pairs, `python -m
bench.calibration` shows. The interval told after a look is at that level too: what was stopped early because it looked
large is not shown surer than it is.
"""

import math
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import numpy as np
from scipy import optimize, stats

from tasks.stats.effect import ERROR


def level(looks: Sequence[int]) -> float:
    """The two-sided error of each look, from the pairs at each. Raises ValueError unless they grow from 2."""
    if not looks or looks[0] < 2 or any(b <= a for a, b in pairwise(looks)):
        raise ValueError(f"looks: must be growing numbers of pairs, the first at least 2, got {list(looks)}")
    return _level(tuple(looks))


@cache
def _level(looks: tuple[int, ...]) -> float:
    if len(looks) == 1:
        return ERROR
    correlation = np.array([[math.sqrt(min(a, b) / max(a, b)) for b in looks] for a in looks])
    joint = stats.multivariate_normal(cov=correlation, seed=1)

    def error(z: float) -> float:
        corner = np.full(len(looks), z)
        return 1 - float(joint.cdf(corner, lower_limit=-corner)) - ERROR

    z = optimize.brentq(error, stats.norm.ppf(1 - ERROR / 2), stats.norm.ppf(1 - ERROR / 2 / len(looks)), xtol=1e-4)
    return float(2 * stats.norm.sf(z))
