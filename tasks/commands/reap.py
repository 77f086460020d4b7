"""`armwise reap`"""

import typer

from tasks import leftovers


def reap() -> None:
    """Free what outlived its lease on this machine. Never touches a live lease; goes by leases and markers."""
    reaped = leftovers.reap()
    for row in reaped:
        print(f"{row['run_dir']}: {row['why']}")
        for words in row["freed"]:
            print(f"    freed {words}")
        for words in row["processes_left"]:
            print(f"    CANNOT BE STOPPED {words}")
    if not reaped:
        print("nothing on this machine has outlived its lease")
    if any(row["processes_left"] for row in reaped):
        raise typer.Exit(1)
