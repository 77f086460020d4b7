"""The console script `armwise`. One file per command in tasks/commands: its function of that name is the command."""

import sys

import typer

from tasks import catalog, commands
from tasks.artifact import BrokenArtifact
from tasks.catalog import UnknownName
from tasks.document import InvalidDocument
from tasks.lease import LeaseLost, SlotBusy
from tasks.pin import NotPinned
from tasks.read_only import Refused
from tasks.server_user import DatabaseAway
from tasks.stack import StackFailed
from tasks.stage import StageFailed, Stopped

DECLARED = (InvalidDocument, UnknownName, NotPinned)
SPOKEN = (*DECLARED, BrokenArtifact, LeaseLost, SlotBusy, DatabaseAway, Refused, StackFailed)
MACHINE = (OSError,)  # a full disk, a folder that may not be written: its own words name the file


def app() -> typer.Typer:
    """The command line, built from the folder of commands."""
    cli = typer.Typer(
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
        help="Controlled experiments for LLM serving.",
    )
    for name in catalog.module_names(commands):
        module = catalog.module_of(commands, name)
        cli.command(name.replace("_", "-"))(getattr(module, name))
    return cli


def main() -> None:
    """Run the command line. A fault that a person can mend is printed as one message.

    Exit code 1: a stage failed, or found what the plan's `fail_on` names. 2: wrong input, or something is missing.
    """
    try:
        app()()
    except (StageFailed, *SPOKEN, *MACHINE) as error:
        print(f"armwise: {error}", file=sys.stderr)
        sys.exit(1 if isinstance(error, StageFailed) else 2)
    except Stopped as error:
        print(f"armwise: {error}", file=sys.stderr)
        sys.exit(143)
