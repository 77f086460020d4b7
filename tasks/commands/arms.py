"""`armwise arms`"""

import typer

from tasks import arm, catalog, engines


def arms(flags: bool = typer.Option(False, help="List every flag that the engines know instead.")) -> None:
    """List the arms, what each varies against its control, and what is unresolved."""
    if flags:
        for engine in catalog.module_names(engines):
            for flag in sorted(catalog.module_of(engines, engine).flag_names()):
                print(f"{engine}\t{flag}")
        return
    for name in arm.names():
        loaded = arm.load(name)
        varies = f"varies {', '.join(loaded.varies)} against {loaded.control}" if loaded.control else "a control"
        todo = arm.unresolved(loaded)
        print(f"{name}\t{loaded.engine}\t{varies}" + (f"\tunresolved: {', '.join(todo)}" if todo else ""))
