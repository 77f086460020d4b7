"""`armwise size`"""

from pathlib import Path
from typing import Annotated

import typer


def size(
    arm: Annotated[str, typer.Argument(help="stem of a file in deploy/arms")],
    gpu: Annotated[str | None, typer.Option(help="name in tasks/sizing/gpus.yaml; the arm's own if left out")] = None,
    model: Annotated[Path | None, typer.Option(help="folder with a config.json, for a model of a hub")] = None,
    context: Annotated[int | None, typer.Option(min=1, help="tokens of each user; max-model-len if left out")] = None,
    run: Annotated[Path | None, typer.Option(help="folder of a run of this arm: what it measured beside it")] = None,
) -> None:
    """Print what an arm's model takes, what fits beside it, and how fast its GPU can be at most."""
    from tasks import arm as arms
    from tasks import artifact
    from tasks.report import sizes, text
    from tasks.report.figures import Report

    loaded = arms.load(arm)
    held = sizes.held(loaded, sizes.gpu(loaded, gpu), model or _folder(loaded.model.path))
    tokens = context or int(str(loaded.flags.get("max-model-len", held.model.max_position_embeddings)))
    measured = artifact.read(run / "effective.json") if run else {}
    print(
        text.render(Report(f"{arm} on {held.gpu.name}", f"size-{arm}", [sizes.table(loaded, held, tokens, measured)]))
    )


def _folder(path: str | None) -> Path:
    from tasks import settings
    from tasks.document import InvalidDocument

    if path is None:
        raise InvalidDocument("model.repo: the model's config.json is not here; give its folder with --model")
    return settings.root() / path
