"""The strict reader of JSON: what it refuses, with the place, and that it agrees with Python on everything else."""

import json
import random
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covering import FULL
from pellucid.checkpoint import json_file
from pellucid.checkpoint.json_file import MOST_PIECES, parse, parse_object, read_object
from pellucid.checkpoint.safetensors_file import MOST_TENSORS
from pellucid.errors import CheckpointError, ConfigError, PellucidError

HOSTILE: list[tuple[bytes, str, str]] = [
    (b"", "json.empty", "f.json"),
    (b" \n\t", "json.empty", "f.json"),
    (b'\xef\xbb\xbf{"a": 1}', "json.encoding", "offset 0"),
    ('{"a": 1}'.encode("utf-16"), "json.encoding", "offset 0"),
    ('{"a": 1}'.encode("utf-16-le"), "json.encoding", "offset 0"),
    ('{"a": 1}'.encode("utf-32-be"), "json.encoding", "offset 0"),
    (b'{"a": "\xff"}', "json.encoding", "offset 7"),
    (b'{"a": "\xed\xa0\x80"}', "json.encoding", "offset 7"),
    (b'{"a": 1,}', "json.syntax", "column 8" if sys.version_info >= (3, 13) else "column 9"),
    (b'{\n  "a": 1\n  "b": 2}', "json.syntax", "line 3, column 3"),
    (b'{"a": 1} x', "json.syntax", "column 10"),
    (b'{"a": 1}{"a": 1}', "json.syntax", "column 9"),
    (b'{"a": "x', "json.syntax", "column 7"),
    (b'{"a": "x\ny"}', "json.syntax", "column 9"),
    (b'{"a": "\\x"}', "json.syntax", "column 8"),
    (b'{"a": 01}', "json.syntax", "column 8"),
    (b'{"a": 1e5-3}', "json.syntax", "column 10"),
    (b"{'a': 1}", "json.syntax", "column 2"),
    (b'{"a": 1, "a": 2}', "json.twice", "the key a"),
    (b'{"b": {"a\\u0062": 1, "ab": 1}}', "json.twice", "the key ab"),
    (b'{"a": NaN}', "json.finite", "column 7: NaN"),
    (b'{"a": -Infinity}', "json.finite", "Infinity"),
    (b'{"a":\n 1e999}', "json.finite", "line 2, column 2: 1e999"),
    (b'{"a": -12.5e308}', "json.finite", "-12.5e308"),
    (b'{"a": ' + b"9" * 32 + b"}", "json.digits", "column 7"),
    (b'{"a": -' + b"9" * 5000 + b"}", "json.digits", "5000"),
    (b'{"a": 0.' + b"9" * 5000 + b"}", "json.digits", "5002"),
    (b'{"a": ' + b"[" * 64 + b"]" * 64 + b"}", "json.depth", "column 70"),
    (b'{"a":' * 200_000, "json.depth", "64"),
    (b"[" * 200_000, "json.depth", "64"),
    (b'{"a": "\\ud800"}', "json.surrogate", "a holds"),
    (b'{"a": [{"b": "x\\uDFFFy"}]}', "json.surrogate", "a[0].b"),
    (b'{"\\ud800": 1}', "json.surrogate", "$"),
    (b'{"a": "\\udc00\\ud800"}', "json.surrogate", "a holds"),
    (b"[1]", "json.object", "array"),
    (b'"text"', "json.object", "string"),
    (b"null", "json.object", "null"),
    (b"true", "json.object", "boolean"),
    (b"7", "json.object", "number"),
]


@pytest.mark.parametrize(("raw", "key", "place"), HOSTILE, ids=range(len(HOSTILE)))
def test_refused(raw: bytes, key: str, place: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_object(raw, "f.json")
    assert caught.value.key == key
    assert place in str(caught.value) and "f.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_accepted() -> None:
    deepest = '{"a": ' + "[" * 63 + "]" * 63 + "}"
    for text in (
        "{}",
        ' {"a": [1, -2.5e-3, 18446744073709551616, "[[[[{{{{ 1e999 NaN \\" \\\\"]}\n',
        '{"a": "\\ud83d\\ude00 \\\\ud800"}',
        deepest,
        '{"model_max_length": 1000000000000000019884624838656}',  # as transformers writes that there is no limit
    ):
        assert parse_object(text.encode(), "f") == json.loads(text)


def test_class_of_error_is_the_callers() -> None:
    with pytest.raises(CheckpointError):
        parse_object(b"[]", "f", CheckpointError)


def test_file(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"a": 1}')
    assert read_object(file) == {"a": 1}
    with pytest.raises(ConfigError, match="8 bytes; at most 7"):
        read_object(file, limit=7)
    with file.open("wb") as sparse:
        sparse.truncate(1 << 30)
    with pytest.raises(ConfigError, match="1073741824 bytes"):
        read_object(file)
    file.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(ConfigError, match="Git LFS"):
        read_object(file)
    with pytest.raises(ConfigError, match="does not exist"):
        read_object(tmp_path / "none.json")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**19), 10**19) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@settings(deadline=None, max_examples=100 if FULL else 30)
@given(st.dictionaries(st.text(), VALUES, max_size=5), st.booleans(), st.sampled_from([None, 2]))
def test_agrees_with_python(value: dict[str, object], plain: bool, indent: int | None) -> None:
    """Whatever Python writes of finite numbers and whole text is read back the same."""
    text = json.dumps(value, ensure_ascii=plain, indent=indent)
    assert parse(text.encode(), "f") == value


def test_mutants_raise_nothing_foreign() -> None:
    """Bytes changed at random are read as Python reads them, or refused by us."""
    random.seed(0)
    seed = b'{"model": {"type": "BPE", "x": [1, -2.5e-3, "\\ud83d\\ude00", true, null, {"a": "\xc3\xa9"}]}, "y": 1e10}'
    refused = 0
    for _ in range(4000):
        raw = bytearray(seed)
        for _ in range(random.randint(1, 4)):
            at = random.randrange(len(raw))
            raw[at : at + random.randint(0, 3)] = random.choice(
                [b"", b"[", b"{", b'"', b"\\", b"9" * 32, b"e999", b"\xff", b",", bytes([at])]
            )
        try:
            assert parse(bytes(raw), "f") == json.loads(raw)
        except PellucidError:
            refused += 1
    assert 1000 < refused < 4000


def test_an_infinity_may_stand_in_a_config_alone(tmp_path: Path) -> None:
    """Python writes it bare. It is read as transformers 5 spells it; a NaN, or a number beyond float64, never is."""
    (tmp_path / "config.json").write_bytes(b'{"time_step_limit": [0.0, Infinity], "least": -Infinity, "text": "Infinity"}')
    read = json_file.read_config(tmp_path / "config.json")
    assert read == {"time_step_limit": [0.0, {"__float__": "Infinity"}], "least": {"__float__": "-Infinity"}, "text": "Infinity"}
    with pytest.raises(ConfigError, match="Infinity"):
        json_file.read_object(tmp_path / "config.json")
    for wrong in (b'{"a": NaN}', b'{"a": 1e999}', b'{"a": [Infinity, NaN]}', b'{"a": Infinity5}', b'{"a": Infinity'):
        (tmp_path / "config.json").write_bytes(wrong)
        with pytest.raises(ConfigError) as refused:
            json_file.read_config(tmp_path / "config.json")
        assert "\n" not in str(refused.value)


def test_scan_is_what_protects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: without the scan Python's parser accepts infinity and dies of depth."""
    monkeypatch.setattr(json_file, "_scan", lambda text, file, error, infinite: None)
    assert parse(b"[1e999]", "f") == [float("inf")]
    with pytest.raises(RecursionError):
        parse(b"[" * (sys.getrecursionlimit() * 100), "f")


@pytest.mark.parametrize("piece", [b"[],", b"{},", b"1,", b'"",', b'{"":""},'])
def test_what_a_byte_may_cost_is_bounded(piece: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short pieces cost Python a hundred times their bytes, so their number is bounded before it parses; the mutant parses them."""
    monkeypatch.setattr(json_file, "MOST_PIECES", 1000)
    many = b'{"a": [' + piece * 1000 + b"0]}"
    with pytest.raises(ConfigError) as caught:
        parse(many, "f.json")
    assert caught.value.key == "json.pieces" and "at most 1000" in str(caught.value)
    assert parse(b'{"a": "' + b",[{" * 1000 + b'"}', "f") == {"a": ",[{" * 1000}  # a string is one piece, whatever is in it
    monkeypatch.setattr(json_file, "MOST_PIECES", 10**9)
    assert len(parse(many, "f.json")["a"]) == 1001


def test_the_largest_published_files_are_below_the_bound() -> None:
    """A tokenizer as large as Gemma 3's: 262,144 pieces, 514,906 merges, an array each; a header of as many tensors as are read."""
    merges, pieces = 514_906, 262_144
    assert 3 * merges + 2 * merges + 2 * pieces < MOST_PIECES  # two strings, two commas and a bracket a merge; a string and a comma a piece
    per_tensor = b'"n":{"dtype":"F32","shape":[1,1,1,1],"data_offsets":[0,4]},'
    assert MOST_TENSORS * (per_tensor.count(b'"') // 2 + sum(map(per_tensor.count, (b",", b"[", b"{")))) < MOST_PIECES


def test_what_is_sound_is_never_scanned_token_by_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tokenizer's numbers, escapes and depths pass the fast way; what is refused goes the slow way, for its place."""
    slow: list[str] = []
    monkeypatch.setattr(json_file, "_find", lambda text, file, error, infinite: slow.append(file))
    parse(b'{"a": [[-8.5e-05, 0.041666666666666664, -12.345678901234567], {"b": [[{"c": []}], "]]]\\"1e999"]}]}', "sound")
    assert slow == []
    parse(b"[" * 65 + b"]" * 65, "deep")
    parse(b"[1e999]", "infinite")
    assert slow == ["deep", "infinite"]


def test_the_quick_look_passes_nothing_unusual(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it passes has no number that the expression would find; without it such a number comes to Python's parser."""
    random.seed(1)
    pieces = ["1", "23", "e", "E", "-", ".", "+", "true", "false", "null", " ", ",", ":", "[", "]", "NaN", "Infinity", "9" * 20, "9" * 21]
    texts = ["".join(random.choices(pieces, k=random.randint(1, 6))) for _ in range(4000)]
    unusual = [text for text in texts if json_file._UNUSUAL.search(text)]
    assert len(unusual) > 500 and not any(map(json_file._usual, unusual))
    assert sum(map(json_file._usual, texts)) > 500 and json_file._usual("{: 1, :[[,],[,]], : true, : -0.5}")
    monkeypatch.setattr(json_file, "_usual", lambda bare: True)
    assert parse(b"[1e999]", "f") == [float("inf")]


def test_hostile_strings_scan_in_linear_time() -> None:
    """Two million escaped quotes in a string that never ends: a scan that starts again at each would not return."""
    with pytest.raises(PellucidError):
        parse(b'{"a": "' + b'\\"' * 2_000_000, "f")
