"""What one successful task costs, through two lenses. Both are stored; they answer different questions.

    all-in     usd_per_hour x hours held / successful tasks: what this experiment paid per task, from the moment the
               machine was bound until its release was proven. Start-up, gate, warm-up and failed tasks are in it.
    sustained  usd_per_hour / (successful tasks per hour in the steady window): what a task would cost if the machine
               did nothing else but this, at the highest load that keeps the SLO.

A failed or wrong task is paid for and not counted. The price is of the whole slot, however many GPUs it has.
"""


def all_in_usd_per_task(*, usd_per_hour: float, held_s: float, tasks: int) -> float | None:
    """None when no task succeeded: a cost per zero tasks is not a number."""
    return usd_per_hour * held_s / 3600 / tasks if tasks > 0 else None


def sustained_usd_per_task(*, usd_per_hour: float, window_s: float, tasks: int) -> float | None:
    """`tasks` succeeded within `window_s` of steady load. None when none did, or for an empty window."""
    return usd_per_hour * window_s / 3600 / tasks if tasks > 0 and window_s > 0 else None
