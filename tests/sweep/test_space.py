"""The search space: what overrides are read as, what is drawn from them, and what is refused."""

import math

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.processes.errors import SettingsError
from launcher.sweep.draws import Choice, Interval, Range
from launcher.sweep.space import read_space


def parameter(text):
    (found,) = read_space([f"a.b={text}"], {}).parameters
    return found


@pytest.mark.parametrize(
    ("text", "expected", "words"),
    [
        ("interval(0.001,0.1)", Interval("a.b", 0.001, 0.1), "0.001 to 0.1"),
        ("interval(1,8)", Interval("a.b", 1.0, 8.0), "1.0 to 8.0"),
        ("tag(log, interval(1e-4,1e-1))", Interval("a.b", 0.0001, 0.1, log=True), "0.0001 to 0.1 (log)"),
        ("int(interval(1,8))", Interval("a.b", 1, 8), "1 to 8 (whole numbers)"),
        ("int(tag(log,interval(1,8)))", Interval("a.b", 1, 8, log=True), "1 to 8 (whole numbers, log)"),
        ("range(1,8)", Range("a.b", range(1, 8), 1), "one of 1, 2, 3, ..., 7"),
        ("range(3)", Range("a.b", range(3), 1), "one of 0, 1, 2"),
        ("range(8,1,step=-3)", Range("a.b", range(8, 1, -3), -3), "one of 8, 5, 2"),
        ("tag(log,range(1,129))", Range("a.b", range(1, 129), 1, log=True), "one of 1, 2, 3, ..., 128 (log)"),
        (
            "range(0.1,0.5,0.1)",
            Range("a.b", (0.1, 0.2, 0.30000000000000004, 0.4), 0.1),
            "one of 0.1, 0.2, 0.30000000000000004, ..., 0.4",
        ),
        ("range(1,3,0.5)", Range("a.b", (1.0, 1.5, 2.0, 2.5), 0.5), "one of 1.0, 1.5, 2.0, ..., 2.5"),
        ("choice(a,b)", Choice("a.b", ("a", "b")), "one of a, b"),
        ("1,true,null,0.1,a", Choice("a.b", ("1", "True", "null", "0.1", "a")), "one of 1, True, null, 0.1, a"),
        ("a,b,a", Choice("a.b", ("a", "b")), "one of a, b"),
        ("[8,16],{x:1}", Choice("a.b", ("[8,16]", "{x:1}")), "one of [8,16], {x:1}"),
        ("sort(2,1)", Choice("a.b", ("1", "2")), "one of 1, 2"),
        ("shuffle(range(1,4))", Range("a.b", range(1, 4), 1), "one of 1, 2, 3"),
    ],
)
def test_what_an_override_is_read_as(text, expected, words):
    found = parameter(text)
    assert found == expected
    assert str(found) == words
    assert type(getattr(found, "low", 0)) is type(getattr(expected, "low", 0))


@pytest.mark.parametrize(
    "values", [("a=b", "x, (y)", "ü'\"", "it\\'s"), ("", " ", "null", "true", "1e3"), ("${a}", "~b", "a\\")]
)
def test_values_reach_a_job_as_they_were_typed(values):
    quoted = ["'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'" for value in values]
    as_one = [OverridesParser.create().parse_override(f"k={text}").value() for text in quoted]
    space = read_space([f"+k={','.join(quoted)}"], {})
    for index, value in enumerate(as_one):
        (text,) = space.overrides(Nth(index))
        override = OverridesParser.create().parse_override(text)
        assert override.value() == value
        assert override.get_key_element() == "+k"


class Nth:
    """Draws the n-th choice, or the n-th of the two bounds."""

    def __init__(self, index):
        self._index = index

    def suggest_categorical(self, _, choices):
        return choices[self._index]

    def suggest_float(self, _, *bounds, **__):
        return bounds[self._index]

    suggest_int = suggest_float


class Grid:
    """Draws the n-th of the values that a distribution with steps has."""

    def __init__(self, index):
        self._index = index

    def suggest_int(self, _, low, high, step=1, **__):
        return range(low, high + 1, step)[self._index]

    def suggest_float(self, _, low, high, step=None):
        assert round((high - low) / step) >= self._index
        return low + self._index * step


@settings(deadline=None, max_examples=60)
@given(
    st.integers(-50, 50),
    st.integers(-50, 50),
    st.sampled_from([1, 2, 3, 7, -1, -2, -3]),
    st.sampled_from([1, 0.1, 0.25, 1e-3]),
)
def test_a_range_holds_what_hydra_enumerates(start, stop, step, scale):
    text = f"a=range({start * scale},{stop * scale},step={step * scale})"
    listed = list(OverridesParser.create().parse_override(text).sweep_string_iterator())
    if not listed:
        with pytest.raises(SettingsError, match="there is no number from"):
            read_space([text], {})
        return
    space = read_space([text], {})
    drawn = [space.overrides(Grid(index))[0] for index in range(len(listed))]
    assert space.size == len(listed)
    assert sorted(drawn) == sorted(f"a={value}" for value in listed)


def test_fixed_overrides_go_along_in_their_order():
    space = read_space(["b='x,y'", "+a=1,2", "~c", "model=net"], {"d.e": "interval(0,1)", "f": [1, None], "g": True})
    ends = [space.overrides(Nth(index)) for index in (0, -1)]
    assert ends[0] == ("d.e=0.0", "f=[1,null]", "g=True", "b='x,y'", "+a=1", "~c", "model=net")
    assert ends[1] == ("d.e=1.0", "f=[1,null]", "g=True", "b='x,y'", "+a=2", "~c", "model=net")
    assert space.searched(Nth(-1)) == ("d.e=1.0", "+a=2")
    assert space.about() == {"a": "one of 1, 2", "d.e": "0.0 to 1.0"}


def test_params_may_be_nested():
    assert read_space([], {"a": {"b": {"c": "1,2"}, "d": 3}}).elements == (
        ("a.b.c", Choice("a.b.c", ("1", "2"))),
        "a.d=3",
    )


@pytest.mark.parametrize(
    ("words", "size"),
    [
        (["a=1,2,3", "b=range(4)", "c=int(interval(1,5))"], 60),
        (["a=1,2", "b=interval(0,1)"], None),
        (["a=1,2", "b=interval(1,1)"], None),
    ],
)
def test_the_number_of_points(words, size):
    assert read_space(words, {}).size == size


@pytest.mark.parametrize(
    ("words", "params", "message"),
    [
        ([], {}, "hydra/sweeper=optuna: nothing is searched; give a setting some values, as optimizer.lr=interval"),
        (["a=1"], {"b": "x"}, "on the command line or in hydra.sweeper.params"),
        (["a=interval(3,1)"], {}, "a=interval(3,1): the lower bound 3.0 is above the upper bound 1.0; swap them"),
        ([], {"a": "interval(3,1)"}, "hydra.sweeper.params.a=interval(3,1): the lower bound 3.0 is above"),
        (["a=tag(log,interval(0,1))"], {}, "a=tag(log,interval(0,1)): the lower bound 0.0 has no logarithm; give one"),
        (["a=tag(log,range(3))"], {}, "a=tag(log,range(3)): the first number 0 has no logarithm; give one above 0"),
        (
            ["a=tag(log,range(1,9,2))"],
            {},
            "the tag log goes with whole numbers in steps of 1; write interval(LOW,HIGH)",
        ),
        (["a=tag(log,choice(1,2))"], {}, "a=tag(log,choice(1,2)): choices have no logarithm; take the tag away, or"),
        (["a=tag(lgo,interval(1,2))"], {}, "a=tag(lgo,interval(1,2)): the tag lgo means nothing; there is log"),
        (["a=range(5,1)"], {}, "a=range(5,1): there is no number from 5 to below 1 in steps of 1"),
        (["a=range(1,5,step=0)"], {}, "there is no number from 1 to below 5 in steps of 0"),
        (["a=range(0,1,1e-7)"], {}, "a=range(0,1,1e-7): there are more than 1,000,000 numbers; write interval(0,1)"),
        (["a=interval(nan,1)"], {}, "a=interval(nan,1): nan is no finite number"),
        (["a=range(1,inf)"], {}, "a=range(1,inf): inf is no finite number"),
        (["a=choice()"], {}, "a=choice() cannot be read: ValueError while evaluating 'choice()': empty choice is not"),
        ([], {"a": "choice()"}, "hydra.sweeper.params.a=choice() cannot be read: "),
        ([], {"a": "tag(log,interval(1"}, "hydra.sweeper.params.a=tag(log,interval(1 cannot be read: "),
        (["a=1,2", "+a=3"], {}, "a is searched and given twice: a=1,2 and +a=3; leave one of them out"),
        (["a=1"], {"a": "interval(0,1)"}, "twice: hydra.sweeper.params.a=interval(0,1) and a=1; leave one"),
        (["a=interval(0,1)"], {"a": 1}, "twice: hydra.sweeper.params.a=1 and a=interval(0,1); leave one"),
    ],
)
def test_what_is_refused(words, params, message):
    with pytest.raises(SettingsError) as found:
        read_space(words, params)
    assert message in str(found.value)


def test_what_is_given_twice_but_not_searched_is_left_to_hydra():
    assert read_space(["a=1", "a=2", "b=1,2"], {"a": 0}).overrides(Nth(0)) == ("a=0", "a=1", "a=2", "b=1")


def test_a_single_value_is_a_space():
    assert parameter("interval(2,2)").draw(Nth(-1)) == "2.0"
    assert math.isfinite(parameter("range(1,2)").size)
