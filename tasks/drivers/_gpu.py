"""What NVML says of this machine's GPUs; nothing where pynvml is not installed or no device is visible.

Energy is NVML's own counter (millijoules since the driver was loaded), not a sum of power readings: those are a second
apart, and a kernel is a thousandth of that.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

Result = TypeVar("Result")


def of_slot(slot: str) -> list[int] | None:
    """A slot named gpu0 or gpu0+1 is those GPUs, in the order of the PCI bus; another name says nothing of GPUs."""
    numbers = slot.removeprefix("gpu").split("+")
    is_gpus = slot.startswith("gpu") and all(number.isdigit() for number in numbers)
    return [int(number) for number in numbers] if is_gpus else None


def memory_used_mib(slot: str) -> list[int] | None:
    """Memory in use per GPU of the slot, in MiB; of every GPU where its name says nothing. None: none to be seen."""
    numbers = of_slot(slot)

    def ask(nvml: Any, devices: list[Any]) -> list[int]:
        chosen = devices if numbers is None else [devices[n] for n in numbers if n < len(devices)]
        return [nvml.nvmlDeviceGetMemoryInfo(device).used // 2**20 for device in chosen]

    return _with_devices(ask)


def readings(slot: str) -> list[dict[str, float]] | None:
    """Per GPU of the slot: gpu (its number), memory_used_mib, utilisation (0 to 1), power_w, energy_j_total.

    What a device does not tell (energy before Volta) is left out. None: there is no GPU to be seen.
    """
    numbers = of_slot(slot)

    def ask(nvml: Any, devices: list[Any]) -> list[dict[str, float]]:
        chosen = range(len(devices)) if numbers is None else [n for n in numbers if n < len(devices)]
        return [{"gpu": n} | _reading(nvml, devices[n]) for n in chosen]

    return _with_devices(ask)


def model() -> str | None:
    """Name of the first GPU."""
    return _with_devices(lambda nvml, devices: _text(nvml.nvmlDeviceGetName(devices[0])))


def versions() -> dict[str, str]:
    """The NVIDIA driver's version, if there is one."""
    found = _with_devices(lambda nvml, _: _text(nvml.nvmlSystemGetDriverVersion()))
    return {} if found is None else {"nvidia_driver": found}


def _reading(nvml: Any, device: Any) -> dict[str, float]:
    asked: dict[str, Callable[[], float]] = {
        "memory_used_mib": lambda: nvml.nvmlDeviceGetMemoryInfo(device).used / 2**20,
        "utilisation": lambda: nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100,
        "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(device) / 1e3,
        "energy_j_total": lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(device) / 1e3,
    }
    found = {}
    for name, ask in asked.items():
        with suppress(nvml.NVMLError):
            found[name] = float(ask())
    return found


def _with_devices(ask: Callable[[Any, list[Any]], Result]) -> Result | None:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        devices = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return ask(pynvml, devices) if devices else None
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
