"""`armwise demo`

Two whole runs of two arms on a real vLLM, through Airflow's own API, and their comparison. Both are asked for before
the first has ended; the slot's lease lets them run one after the other. Exit code 0 only if both runs succeeded, are
valid and passed the gate. Ctrl-C and SIGTERM stop the runs like a person who marks them failed: what was measured is
stored, the engine is gone, and then everything is stopped. A stack that was up before stays up.
"""

import typer

CONTROL, ARM = "cpu-baseline", "cpu-no-prefix-caching"


def demo(
    target: str = typer.Option("local-cpu", help="Where: a folder in deploy/targets"),
    plan: str = typer.Option("demo", help="What is measured: a file in deploy/plans"),
) -> None:
    """Run a control and an arm through Airflow on a real engine, compare them, and leave nothing running."""
    from tasks.stack import demo as shown

    try:
        raise typer.Exit(shown.show(CONTROL, ARM, target=target, plan=plan))
    except KeyboardInterrupt:
        print("demo: stopped by Ctrl-C")
        raise typer.Exit(130) from None
