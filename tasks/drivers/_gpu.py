"""What NVML says of this machine's GPUs; nothing where pynvml is not installed or no device is visible."""

from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


def memory_used_mib() -> list[int] | None:
    """Memory in use per GPU, in MiB; None: no GPU to be seen."""
    return _with_devices(lambda nvml, devices: [nvml.nvmlDeviceGetMemoryInfo(d).used // 2**20 for d in devices])


def model() -> str | None:
    """Name of the first GPU."""
    return _with_devices(lambda nvml, devices: _text(nvml.nvmlDeviceGetName(devices[0])))


def versions() -> dict[str, str]:
    """The NVIDIA driver's version, if there is one."""
    found = _with_devices(lambda nvml, _: _text(nvml.nvmlSystemGetDriverVersion()))
    return {} if found is None else {"nvidia_driver": found}


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
