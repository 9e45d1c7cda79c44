"""The HPARAMS page of ``tensorboard --logdir SWEEP_DIR``: a row for each job, with what sets it apart."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from launcher.sweep.jobs import DONE, FAILED, WAITING, Record
from launcher.sweep.parameters import is_number, parameters, value_of, varying
from launcher.sweep.table import metric_names
from launcher.sweep.words import shown, unquoted

FILE = "events.out.tfevents.0.sweep"
"""Its name comes before those of the files of runs: of two that tell the same, TensorBoard believes the first."""
STATUS = {**dict.fromkeys(DONE, "STATUS_SUCCESS"), FAILED: "STATUS_FAILURE"}


def write_hparams(records: Sequence[Record], metric: str | None, root: Path) -> None:
    """Write a row into the run folder of each job that has one, and the columns of all rows with it.

    The columns are the parameters that vary and the metrics of evaluations, of which a row shows the last points of
    the run's curves. The rows of all settings, which runs that end write themselves, give way to those of the sweep.
    TensorBoard takes the columns from any one of the runs.

    Args:
        records: the jobs.
        metric: as ``sweep.metric`` names it; its column comes first.
        root: the sweep's folder.

    Raises:
        OSError: where a file cannot be written.
    """
    own = [parameters(record) for record in records]
    columns = {key: column_of([job.get(key) for job in own]) for key in varying(records)}
    experiment = _experiment(columns, metric_names(records, metric))
    for place, record in enumerate(records):
        folder = root / record.folder
        if record.state != WAITING and record.same_as is None and folder.is_dir():
            row = {key: values[place] for key, values in columns.items()}
            told = {"experiment": experiment, "session_start_info": _start(row), "session_end_info": _end(record.state)}
            _write(folder / "tensorboard" / FILE, told)


def column_of(texts: Sequence[str | None]) -> list[bool | float | str | None]:
    """The values of a parameter as one kind that TensorBoard knows: numbers, bools, or else text; None: has none.

    >>> [column_of(texts) for texts in (["1", "1e-3", None], ["true", "false"], ["1", "auto"], ["'a b'", "[1]"])]
    [[1.0, 0.001, None], [True, False], ['1', 'auto'], ['a b', '[1]']]
    """
    values = {text: value_of(text) for text in texts if text is not None}
    if all(isinstance(value, bool) for value in values.values()):
        return [None if text is None else bool(values[text]) for text in texts]
    if all(map(is_number, values.values())):
        return [None if text is None else float(values[text]) for text in texts]
    return [None if text is None else shown(unquoted(text)) for text in texts]


def _experiment(columns: Mapping[str, Sequence[Any]], metrics: Sequence[str]) -> Any:
    from tensorboard.plugins.hparams import api_pb2  # noqa: PLC0415 - slow to import, needed at the end alone

    infos = [api_pb2.MetricInfo(name=api_pb2.MetricName(tag=name)) for name in metrics]
    return api_pb2.Experiment(hparam_infos=[_info(key, values) for key, values in columns.items()], metric_infos=infos)


def _info(key: str, values: Sequence[Any]) -> Any:
    """A column; of a few texts or bools, each can be left out of the page."""
    from tensorboard.plugins.hparams import api_pb2  # noqa: PLC0415 - as above

    different = sorted({value for value in values if value is not None})
    kind = {bool: "BOOL", float: "FLOAT64", str: "STRING"}[type(different[0])]
    info = api_pb2.HParamInfo(name=key, type=f"DATA_TYPE_{kind}", differs=True)
    if kind != "FLOAT64":
        info.domain_discrete.extend(different)
    return info


def _start(row: Mapping[str, Any]) -> Any:
    from tensorboard.plugins.hparams import plugin_data_pb2  # noqa: PLC0415 - as above

    start = plugin_data_pb2.SessionStartInfo()
    for key, value in row.items():
        name = {bool: "bool_value", float: "number_value", str: "string_value"}.get(type(value))
        if name is not None:
            setattr(start.hparams[key], name, value)
    return start


def _end(state: str) -> Any:
    from tensorboard.plugins.hparams import plugin_data_pb2  # noqa: PLC0415 - as above

    return plugin_data_pb2.SessionEndInfo(status=STATUS.get(state, "STATUS_UNKNOWN"))


def _write(path: Path, told: Mapping[str, Any]) -> None:
    """Put a file of events in the place of ``path``, each under the tag and in the field of its name."""
    from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415 - as above
    from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415 - as above
    from tensorboard.plugins.hparams import metadata, plugin_data_pb2  # noqa: PLC0415 - as above
    from tensorboard.summary.writer.record_writer import RecordWriter  # noqa: PLC0415 - as above

    file = BytesIO()
    writer = RecordWriter(file)
    events = [Event(file_version="brain.Event:2")]
    for name, content in told.items():
        about = metadata.create_summary_metadata(plugin_data_pb2.HParamsPluginData(**{name: content}))
        value = Summary.Value(tag=f"_hparams_/{name}", metadata=about, tensor=metadata.NULL_TENSOR)
        events.append(Event(summary=Summary(value=[value])))
    for event in events:
        event.wall_time = time.time()
        writer.write(event.SerializeToString())
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(file.getvalue())
