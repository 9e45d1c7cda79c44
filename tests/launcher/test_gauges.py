"""How busy cores and GPUs are, and how much of a GPU's arithmetic is used."""

# ruff: noqa: N802, ARG002 - pynvml names its functions so, and gives them arguments

import math
from collections import namedtuple
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from launcher.observe import gauges
from launcher.observe.clock import HostTimer, Stopwatch
from launcher.observe.flops import Flops, flops_of_a_row, peak_of
from launcher.observe.gauges import CpuUse, Paced, gpu_use, gpu_use_by
from launcher.observe.meter import OF_RANKS, RunMeter
from launcher.observe.observer import Done, RunObserver
from launcher.observe.status import Status

CPU = torch.device("cpu")


class FakeNvml:
    """The part of pynvml that is used, on a machine with one GPU of the UUID ``GPU-abc``."""

    NVML_SUCCESS, NVML_ERROR_NOT_SUPPORTED, NVML_DEVICE_MIG_ENABLE, NVML_GPM_METRICS_GET_VERSION = 0, 3, 1, 1
    NVML_GPM_METRIC_SM_UTIL, NVML_GPM_METRIC_ANY_TENSOR_UTIL, NVML_GPM_METRIC_DRAM_BW_UTIL = 2, 5, 10

    class NVMLError(Exception):
        pass

    def __init__(self, *, driver=True, mig=0, gpm=True, unknown=()):
        self.driver, self.mig, self.gpm, self.unknown = driver, mig, gpm, unknown
        self.taken, self.fails = 0, False
        if gpm is None:
            self.nvmlGpmQueryDeviceSupport = self._refuse

    def _refuse(self, *_):
        raise self.NVMLError("not supported")

    def nvmlInit(self):
        if not self.driver:
            self._refuse()

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return "handle" if uuid == "GPU-abc" else self._refuse()

    def nvmlDeviceGetMigMode(self, handle):
        assert handle == "handle"
        return [self.mig, 0] if self.mig is not None else self._refuse()

    def nvmlDeviceGetUtilizationRates(self, handle):
        return self._refuse() if self.fails else SimpleNamespace(gpu=87, memory=12)

    def nvmlGpmQueryDeviceSupport(self, handle):
        return SimpleNamespace(isSupportedDevice=int(self.gpm))

    def nvmlGpmSampleAlloc(self):
        return SimpleNamespace(number=None)

    def nvmlGpmSampleGet(self, handle, sample):
        if self.fails:
            self._refuse()
        self.taken += 1
        sample.number = self.taken
        return sample

    def c_nvmlGpmMetricsGet_t(self):
        return SimpleNamespace(metrics=[SimpleNamespace(value=0.0, nvmlReturn=0) for _ in range(9)])

    def nvmlGpmMetricsGet(self, asked):
        assert (asked.version, asked.numMetrics) == (1, 3)
        between = asked.sample2.number - asked.sample1.number
        assert between == 1
        for metric in asked.metrics[:3]:
            metric.value = float(10 * metric.metricId + asked.sample2.number)
            metric.nvmlReturn = 3 if metric.metricId in self.unknown else 0
        return asked


def test_a_gpu_with_performance_monitoring_tells_what_is_busy_between_two_readings():
    read = gpu_use_by(FakeNvml(), "abc")
    assert read() == {"gpu/sm": 0.22, "gpu/tensor": 0.52, "gpu/memory": 1.02}
    assert read() == {"gpu/sm": 0.23, "gpu/tensor": 0.53, "gpu/memory": 1.03}
    assert set(read()) <= set(OF_RANKS)
    assert gpu_use_by(FakeNvml(unknown=(5,)), "abc")() == {"gpu/sm": 0.22, "gpu/memory": 1.02}


@pytest.mark.parametrize("options", [{"gpm": False}, {"gpm": None}, {"gpm": False, "mig": None}])
def test_another_tells_for_how_long_any_kernel_ran(options):
    assert gpu_use_by(FakeNvml(**options), "GPU-abc")() == {"gpu/kernel_busy": 0.87}


@pytest.mark.parametrize(
    ("nvml", "uuid"), [(FakeNvml(driver=False), "abc"), (FakeNvml(mig=1), "abc"), (FakeNvml(), "MIG-of-another")]
)
def test_without_a_driver_and_on_a_part_of_a_gpu_nothing_is_known(nvml, uuid):
    assert gpu_use_by(nvml, uuid)() == {}


@pytest.mark.parametrize("gpm", [True, False])
def test_a_reading_that_fails_ends_nothing(gpm):
    nvml = FakeNvml(gpm=gpm)
    read = gpu_use_by(nvml, "abc")
    nvml.fails = True
    assert read() == {}
    nvml.fails = False
    assert read()


def test_a_cpu_has_no_gpu_use():
    assert gpu_use(CPU)() == {}


def cores(*busy_and_idle):
    """The times of cores: of all, half of what is busy is a guest's, and half of what is idle waits for a disk."""
    return [
        Times(user=busy, idle=idle / 2, iowait=idle / 2, guest=busy / 2, guest_nice=0.0) for busy, idle in busy_and_idle
    ]


Times = namedtuple("Times", ["user", "idle", "iowait", "guest", "guest_nice"])  # noqa: PYI024 - its types say nothing


@pytest.mark.parametrize(("usable", "mask", "use"), [(2, [1, 2], 0.75), (1, [1, 2], None), (2, [1, 2, 7], None)])
def test_the_use_of_the_cores_of_this_process(monkeypatch, usable, mask, use):
    times = iter([cores((9, 9), (0, 0), (0, 0)), cores((9, 99), (4, 0), (2, 2))])
    monkeypatch.setattr(gauges, "usable_cores", lambda: usable)
    monkeypatch.setattr(gauges, "_mask", lambda: mask)
    monkeypatch.setattr(gauges.psutil, "cpu_times", lambda **_: next(times))
    assert CpuUse()() == {"cpu/usable_cores": usable, **({} if use is None else {"cpu/use": use})}


def test_the_use_of_real_cores_is_a_share():
    told = CpuUse()()
    assert told["cpu/usable_cores"] >= 1
    assert 0 <= told.get("cpu/use", 0) <= 1


def test_a_gauge_is_read_once_a_second():
    moments = iter([10.0, 10.5, 11.0, 11.9, 12.1, 12.2])
    read = Paced(lambda: {"cpu/use": 0.5}, lambda: next(moments))
    assert [read() for _ in range(5)] == [{}, {"cpu/use": 0.5}, {}, {"cpu/use": 0.5}, {}]


def test_operations_are_counted_for_forward_and_backward():
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
    rows = torch.randn(4, 5)
    assert flops_of_a_row(lambda: model(rows), 4) == 3 * 2 * (5 * 7 + 7 * 3)


def test_the_meter_tells_gauges_and_what_is_used_of_the_peak():
    hands = iter([0.0, 1.0, 6.0])
    meter = RunMeter(Stopwatch(HostTimer(lambda: next(hands))), CPU, CPU, [lambda: {"gpu/sm": 0.5}], Flops(3e9, 1e12))
    meter.begin()
    told = meter.close(500)
    assert (told["gpu/sm"], told["speed/rows_per_s_per_rank"]) == (0.5, 100)
    assert told["speed/flop_utilisation"] == pytest.approx(0.3)
    assert "gpu/tensor" not in told


@pytest.mark.parametrize(
    ("name", "known"), [("NVIDIA H200", 989.4e12), ("NVIDIA A100-SXM4-40GB", 312e12), ("GH200", None)]
)
def test_peaks_of_devices(name, known):
    assert peak_of(name, "bf16") == known


def test_more_than_the_peak_is_said_once(tmp_path, caplog):
    observer = RunObserver(tmp_path, Status(), 3, 1)
    for step, utilisation in ((1, 0.9), (2, 1.25), (3, 1.5)):
        observer.trained(Done(step), 1, {"loss": 1.0}, {"speed/flop_utilisation": utilisation, "time/data": math.nan})
    (said,) = caplog.messages
    assert said.startswith("speed/flop_utilisation is 125 %, which cannot be: ")
    assert [said] == ["speed/flop_utilisation is 125 %, which cannot be: the model computes less than was counted"]
