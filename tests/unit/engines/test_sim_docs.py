"""docs/sim.md lists every fault as the table has it."""

from tasks import settings
from tasks.engines.sim.faults import TABLE


def rows() -> list[str]:
    by_number = sorted(TABLE.items(), key=lambda item: item[1].number)
    return [
        f"| {fault.number} | `{name}` | {fault.place} | {fault.says} | "
        f"{', '.join(f'{key}={value}' for key, value in fault.params.items())} |"
        for name, fault in by_number
    ]


def test_the_page_lists_every_fault() -> None:
    page = (settings.root() / "docs" / "sim.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in page if line.startswith("| ")][1:] == rows(), "write these lines into docs/sim.md"
