"""How busy the processor cores and the GPU of a rank are, read now and then."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

import psutil
import torch

from launcher.processes.threads import usable_cores

Read = Callable[[], Mapping[str, float]]
PERIOD_S = 1.0
GPM = {
    "gpu/sm": "NVML_GPM_METRIC_SM_UTIL",
    "gpu/tensor": "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
    "gpu/memory": "NVML_GPM_METRIC_DRAM_BW_UTIL",
}
"""What NVML's GPU performance monitoring is asked for: busy multiprocessors, tensor cores and memory bandwidth."""


def nothing() -> Mapping[str, float]:
    """What a gauge tells that cannot be read."""
    return {}


class Paced:
    """Reads a gauge at most once a second, since that takes time; in between it tells nothing.

    Args:
        read: what it is that is read, since it was read last.
        now: seconds.
    """

    def __init__(self, read: Read, now: Callable[[], float] = time.perf_counter) -> None:
        self._read, self._now, self._last = read, now, now()

    def __call__(self) -> Mapping[str, float]:
        """By name; empty where it is too early."""
        now = self._now()
        if now - self._last < PERIOD_S:
            return {}
        self._last = now
        return self._read()


class CpuUse:
    """How busy the cores are that this process may use, with all processes that run there.

    ``cpu/usable_cores`` is their number by affinity mask and cgroup quota. ``cpu/use`` is the share of time for which
    they were busy since the last reading; it is left out where the quota is below the mask, as others may use the rest.
    """

    def __init__(self) -> None:
        self._cores = usable_cores()
        self._mask = _mask()
        self._before = self._busy_and_all()

    def __call__(self) -> Mapping[str, float]:
        """By name."""
        busy, total = self._busy_and_all()
        busy_before, total_before = self._before
        self._before = busy, total
        told = {"cpu/usable_cores": float(self._cores)}
        if self._cores < len(self._mask) or total <= total_before:
            return told
        return {**told, "cpu/use": min(1.0, max(0.0, (busy - busy_before) / (total - total_before)))}

    def _busy_and_all(self) -> tuple[float, float]:
        """Seconds since the machine started, over these cores."""
        every = psutil.cpu_times(percpu=True)
        cores = [every[core] for core in self._mask if core < len(every)]
        idle = sum(core.idle + getattr(core, "iowait", 0.0) for core in cores)
        # What guests take is a part of user and nice already.
        total = sum(sum(core) - getattr(core, "guest", 0.0) - getattr(core, "guest_nice", 0.0) for core in cores)
        return total - idle, total


def _mask() -> list[int]:
    try:
        return list(psutil.Process().cpu_affinity())
    except AttributeError:  # another system than Linux
        return list(range(psutil.cpu_count() or 1))


def gpu_use(device: torch.device) -> Read:
    """How busy a CUDA device is; needs nvidia-ml-py, and tells nothing without it or on a part of a GPU (MIG)."""
    if device.type != "cuda":
        return nothing
    try:
        nvml = import_module("pynvml")
    except ImportError:
        return nothing
    return gpu_use_by(nvml, str(torch.cuda.get_device_properties(device).uuid))


def gpu_use_by(nvml: Any, uuid: str) -> Read:
    """As ``gpu_use``.

    Args:
        nvml: the module ``pynvml``, or what stands in for it.
        uuid: of the device, as torch has it; numbers of devices mean something else under CUDA_VISIBLE_DEVICES.
    """
    try:
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}")
    except nvml.NVMLError:  # no driver, or the UUID is that of a part of a GPU
        return nothing
    with suppress(nvml.NVMLError):  # cards that cannot be parted do not know the question
        if nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE:
            return nothing
    try:
        return PerformanceMonitor(nvml, handle)
    except (nvml.NVMLError, AttributeError):  # a card or driver before Hopper
        return _kernel_busy(nvml, handle)


def _kernel_busy(nvml: Any, handle: Any) -> Read:
    """``gpu/kernel_busy``: the share of time for which any kernel ran, however little of the GPU it took."""

    def read() -> Mapping[str, float]:
        try:
            return {"gpu/kernel_busy": nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100}
        except nvml.NVMLError:
            return {}

    return read


class PerformanceMonitor:
    """``gpu/sm``, ``gpu/tensor`` and ``gpu/memory`` by NVML's GPU performance monitoring, between two readings.

    Args:
        nvml: the module.
        handle: of the device.

    Raises:
        NVMLError: where the device has none.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
        self._nvml, self._handle = nvml, handle
        self._samples = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
        nvml.nvmlGpmSampleGet(handle, self._samples[0])

    def __call__(self) -> Mapping[str, float]:
        """Shares by name; what the device does not know is left out."""
        try:
            return self._between()
        except self._nvml.NVMLError:
            return {}

    def _between(self) -> Mapping[str, float]:
        before, now = self._samples
        self._nvml.nvmlGpmSampleGet(self._handle, now)
        asked = self._nvml.c_nvmlGpmMetricsGet_t()
        asked.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
        asked.sample1, asked.sample2, asked.numMetrics = before, now, len(GPM)
        for number, constant in enumerate(GPM.values()):
            asked.metrics[number].metricId = getattr(self._nvml, constant)
        self._nvml.nvmlGpmMetricsGet(asked)
        self._samples = [now, before]
        found = {name: asked.metrics[number] for number, name in enumerate(GPM)}
        return {
            name: metric.value / 100
            for name, metric in found.items()
            if metric.nvmlReturn == self._nvml.NVML_SUCCESS and math.isfinite(metric.value)
        }
