"""What the GPU did while the tiers ran, and what a success took of it. Nothing where no GPU was seen."""

from tasks.report.figures import Cell, Table, cell
from tasks.report.stored import Views


def tables(found: Views) -> list[Table]:
    """One table, a line per tier."""
    shown = [row for row in found["energy"] if row["energy_j"] is not None]
    columns = ["tier", "J per success", "successes", "J per output token", "mean W", "busy", "most memory, MiB", "s"]
    rows = [
        [
            Cell(row["tier"]),
            *map(cell, (row["per_success_j"], row["successes"], row["per_output_token_j"], row["power_w"])),
            cell(row["utilisation"]),
            *map(cell, (row["memory_mib"], row["seconds_s"])),
        ]
        for row in shown
    ]
    note = "By the GPU's own counter, from the tier's first reading to its last; warm-up and pauses are paid for."
    is_grey = not all(row["is_valid"] for row in shown)
    return (
        [Table("What did the GPU do, and what did a success take?", columns, rows, note, is_grey=is_grey)]
        if shown
        else []
    )
