"""`armwise down`"""

import typer


def down() -> None:
    """Stop Airflow, the gateway, the database and whatever they started, and show that nothing is left."""
    from tasks.stack import local

    left = local.down()
    for words in left:
        print(f"CANNOT BE STOPPED {words}")
    if left:
        raise typer.Exit(1)
    print("nothing of this stack is running")
