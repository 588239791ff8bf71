"""A user's file of device peaks: what it can say, and that it never ends in a traceback."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_torchprof.core.errors import SettingsError
from pytest_torchprof.work.devices import DTYPES, Device, find, known_chips, read_peaks

LEAST = {"name": "X1", "bandwidth": "3.35 TB/s", "peaks": {"bf16": "989.4 TFLOP/s"}}


def load(folder: Path, document: object) -> tuple[Device, ...]:
    path = folder / "peaks.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document), "utf-8")
    return read_peaks(path)


def test_the_least_that_a_file_says(tmp_path: Path) -> None:
    (device,) = load(tmp_path, LEAST)
    assert device.name == "X1"
    assert device.peaks == {"bf16": 989.4e12}
    assert device.bandwidth_bytes_per_s == 3.35e12
    assert (device.memory_bytes, device.capability, device.architecture) == (None, None, None)
    assert device.multiprocessors is None
    assert device.source == f"{tmp_path / 'peaks.json'}, device 1"
    assert find({"name": "NVIDIA X1"}, [device]) is device


def test_all_that_a_file_can_say(tmp_path: Path) -> None:
    more = {
        "match": ["X One", "X1 PCIe"],
        "capability": "12.1",
        "architecture": "gfx90a",
        "memory": "80 GiB",
        "multiprocessors": 132,
        "source": "its makers",
        "bandwidth": 900e9,
        "peaks": {"fp32": 5e13, "tf32": "1,000 GFLOPS", "fp8": "1.5 PFLOP/s", "int8": "1979 TOP/s"},
    }
    first, second = load(tmp_path, [LEAST, LEAST | more])
    assert first.peaks == {"bf16": 989.4e12}
    assert second == Device(
        name="X1",
        peaks={"fp32": 5e13, "tf32": 1e12, "fp8": 1.5e15, "int8": 1979e12},
        bandwidth_bytes_per_s=900e9,
        memory_bytes=80 * 2**30,
        capability=(12, 1),
        architecture="gfx90a",
        source="its makers",
        names=("X One", "X1 PCIe"),
        multiprocessors=132,
    )
    assert hash(first) != hash(second)


def test_one_name_to_match_is_enough(tmp_path: Path) -> None:
    (device,) = load(tmp_path, LEAST | {"match": "Example X One", "source": None})
    assert device.names == ("Example X One",)


def test_a_device_without_a_name_in_the_trace_is_found_by_its_facts(tmp_path: Path) -> None:
    extra = load(tmp_path, LEAST | {"capability": "9.7", "memory": "80 GB"})
    properties = {"name": "", "computeMajor": 9, "computeMinor": 7, "totalGlobalMem": 85018279936}
    assert find(properties, extra) is extra[0]
    assert find(properties) is None


def test_the_example_of_the_documents_is_read(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "devices.md").read_text("utf-8")
    (text,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    (device,) = load(tmp_path, text)
    assert device.peaks["int8"] == 1979e12
    docstring = re.findall(r"```json\n(.*?)```", str(read_peaks.__doc__), re.DOTALL)
    assert json.loads(docstring[0]) == json.loads(text) | {"architecture": "gfx942"}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("", "are not JSON"),
        ("{", "are not JSON"),
        ('{"name": NaN}', "are not JSON"),
        ("\ufeff{}", "are not JSON"),
        ("[" * 100_000, "are not JSON"),
        ([], "lists no device: an empty list"),
        (1, "device 1 cannot be: Expected `object`, got `int`; its keys are name,"),
        ([LEAST, None], "device 2 cannot be: Expected `object`, got `null`"),
        ({}, "device 1 cannot be: Object missing required field `name`"),
        ({"name": "X1"}, "missing required field `bandwidth`"),
        (LEAST | {"bandwith": 1}, "unknown field `bandwith`; its keys are name, bandwidth"),
        (LEAST | {"peaks": {"bf61": 1}}, "Invalid enum value 'bf61' - at `key` in `$.peaks`"),
        (LEAST | {"peaks": {}}, "peaks: this cannot be: {}; give one or more of fp64"),
        (LEAST | {"peaks": 1e12}, "Expected `object`, got `float` - at `$.peaks`"),
        (LEAST | {"peaks": {"bf16": 0}}, "peaks.bf16: this cannot be: 0.0; "),
        (LEAST | {"peaks": {"bf16": -1}}, "peaks.bf16: -1.0 is not a rate of FLOPs: it is"),
        (
            LEAST | {"peaks": {"bf16": True}},
            "Expected `float | str`, got `bool`",
        ),
        (LEAST | {"peaks": {"bf16": "NaN"}}, "not a number with a unit"),
        (LEAST | {"peaks": {"bf16": "989"}}, "no unit"),
        (LEAST | {"peaks": {"bf16": "989 TFLOP"}}, 'the unit "TFLOP"; write a number in FLOP/s'),
        (LEAST | {"peaks": {"bf16": "3 TB/s"}}, 'the unit "TB/s"'),
        (LEAST | {"peaks": {"int8": "3 TFLOP/s"}}, "peaks.int8: "),
        (LEAST | {"peaks": {"bf16": 10**40}}, "it is too large"),
        (LEAST | {"bandwidth": "0 TB/s"}, 'bandwidth: this cannot be: "0 TB/s"'),
        (LEAST | {"bandwidth": "1e-30 B/s"}, "bandwidth: this cannot be"),
        (LEAST | {"bandwidth": None}, "Expected `float | str`, got `null` - at `$.bandwidth`"),
        (LEAST | {"bandwidth": "3 TiB/s"}, 'the unit "TiB/s"'),
        (LEAST | {"name": " "}, 'name: this cannot be: [" "]; write a line of text'),
        (LEAST | {"name": "a\nb"}, "name: this cannot be"),
        (LEAST | {"match": ["X1", 2]}, "Expected `str`, got `int` - at `$.match[1]`"),
        (LEAST | {"capability": 9.0}, "Expected `str | null`, got `float` - at `$.capability`"),
        (LEAST | {"capability": "9"}, "Expected `str` matching regex"),
        (LEAST | {"architecture": "cdna3"}, "at `$.architecture`"),
        (LEAST | {"memory": "80"}, "memory: "),
        (LEAST | {"memory": 0.5}, "memory: this cannot be"),
        (LEAST | {"multiprocessors": "132"}, "Expected `int | null`, got `str`"),
        (LEAST | {"multiprocessors": 0}, "Expected `int` >= 1 - at `$.multiprocessors`"),
        (LEAST | {"source": 3}, "Expected `str | null`, got `int` - at `$.source`"),
    ],
)
def test_an_impossible_value_is_reported_with_its_place_and_what_is_allowed(
    document: object, message: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, document)
    assert message in str(caught.value)
    assert str(tmp_path / "peaks.json") in str(caught.value)
    assert caught.value.next_step
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(SettingsError, match=r"cannot be read: .*; name a JSON"):
            read_peaks(path)


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        ["3 TB/s", "5 TFLOP/s", "5 TOP/s", "80 GB", "9.0", "gfx942", 10**50, "1e999 B"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(DTYPES), inner),
    max_leaves=5,
)
ENTRY = st.dictionaries(
    st.sampled_from(["match", "memory", "capability", "architecture", "multiprocessors", "source",
                     "name", "bandwidth", "peaks"]) | st.text(max_size=4),
    VALUES,
)  # fmt: skip


def read_or_refuse(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "peaks.json")
        path.write_bytes(data)
        try:
            devices = read_peaks(path)
        except SettingsError as error:
            str(error).encode()  # it can be printed
            return
    for device in devices:
        assert all(peak >= 1 for peak in device.peaks.values())
        assert device.bandwidth_bytes_per_s >= 1
        known = {"computeMajor": 9, "computeMinor": 4, "totalGlobalMem": 2**37}
        find({"name": "", **known}, devices)
        assert find({"name": device.names[0]}, devices) in {*devices, None, *known_chips()}


@given(VALUES | ENTRY.map(lambda entry: LEAST | entry))
@example(LEAST | {"name": "°", "match": "°"})
@example([LEAST, LEAST])
def test_any_json_is_read_or_refused(document: object) -> None:
    read_or_refuse(json.dumps(document).encode())


@given(st.binary())
@example(b"\xff\xfe{")
@example(b'"\\ud800"')
@example(b'{"\\ud800": 1}')
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    read_or_refuse(data)
