"""The rows of a sweep on TensorBoard's page of hyperparameters."""

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

from launcher.observe.tensorboard import TensorBoard
from launcher.sweep.hparams import column_of, write_hparams
from launcher.sweep.jobs import FINISHED
from tests.sweep.records import failed, finished, record

JOBS = [
    finished(0, "optimizer.lr=0.1 +vars.kind='[b],x' batch.exact=true trainer.epochs=2", 0.9),
    failed(1, "optimizer.lr=1e-3 batch.exact=false trainer.epochs=2"),
    record(2, "optimizer.lr=3 batch.exact=true trainer.epochs=2"),
    record(3, "optimizer.lr=0.1 +vars.kind='[b],x' batch.exact=true trainer.epochs=2", FINISHED, same_as=0),
    failed(4, "optimizer.lr=4 batch.exact=true trainer.epochs=2"),
]


@pytest.fixture
def sweep(tmp_path):
    for number in range(4):
        (tmp_path / str(number)).mkdir()
    run = TensorBoard(tmp_path / "0")
    run.scalars({"test/accuracy": 0.9}, 40)
    run.hparams({"optimizer": {"lr": 0.1}, "seed": 0}, {"test/accuracy": 0.9})
    run.write()
    write_hparams(JOBS, "accuracy", tmp_path)
    return tmp_path


def told(run_dir):
    """Columns, row and status of a run, as TensorBoard reads them."""
    events = EventAccumulator(str(run_dir / "tensorboard")).Reload()
    contents = {tag: events.SummaryMetadata(tag).plugin_data.content for tag in events.PluginTagToContent("hparams")}
    experiment = metadata.parse_experiment_plugin_data(contents[metadata.EXPERIMENT_TAG])
    start = metadata.parse_session_start_info_plugin_data(contents[metadata.SESSION_START_INFO_TAG])
    end = metadata.parse_session_end_info_plugin_data(contents[metadata.SESSION_END_INFO_TAG])
    row = {key: getattr(value, value.WhichOneof("kind")) for key, value in start.hparams.items()}
    return experiment, row, end.status


def test_a_row_has_what_sets_the_job_apart_and_a_run_that_failed_has_one_too(sweep):
    succeeded, went_wrong = 1, 2
    assert told(sweep / "0")[1:] == ({"optimizer.lr": 0.1, "vars.kind": "[b],x", "batch.exact": True}, succeeded)
    assert told(sweep / "1")[1:] == ({"optimizer.lr": 0.001, "batch.exact": False}, went_wrong)


def test_all_runs_have_the_same_columns(sweep):
    columns = told(sweep / "0")[0]
    assert columns == told(sweep / "1")[0]
    assert [info.name for info in columns.hparam_infos] == ["optimizer.lr", "vars.kind", "batch.exact"]
    assert [list(info.domain_discrete) for info in columns.hparam_infos] == [[], ["[b],x"], [False, True]]
    assert [info.name.tag for info in columns.metric_infos] == ["test/accuracy", "test/loss", "train/loss"]


def test_jobs_without_a_run_of_their_own_have_no_row(sweep):
    assert sorted(path.name for path in sweep.iterdir()) == ["0", "1", "2", "3"]
    assert [list((sweep / name).iterdir()) for name in ("2", "3")] == [[], []]


def test_the_curves_of_a_run_stay(sweep):
    events = EventAccumulator(str(sweep / "0" / "tensorboard")).Reload()
    assert [(point.step, point.value) for point in events.Scalars("test/accuracy")] == [(40, pytest.approx(0.9))]


def test_written_again_the_last_counts(sweep):
    write_hparams([finished(1, "optimizer.lr=1e-3", 0.5), *JOBS[2:]], None, sweep)
    assert told(sweep / "1")[2] == 1


@pytest.mark.parametrize(
    ("texts", "right"),
    [
        (["1", "1e-3", None], [1.0, 0.001, None]),
        (["true", "False"], [True, False]),
        (["true", "1"], ["true", "1"]),
        (["null", "1"], ["null", "1"]),
        (["inf", "1"], ["inf", "1"]),
        (["'a\n'", "[1,2]", "~"], ["a\\n", "[1,2]", "~"]),
    ],
)
def test_a_column_is_of_one_kind(texts, right):
    assert column_of(texts) == right
    assert [type(value) for value in column_of(texts)] == [type(value) for value in right]
