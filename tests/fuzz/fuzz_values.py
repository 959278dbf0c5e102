"""Values that a user, a typo or an attacker may write: by kind of nastiness, for options, keys and JSON."""

from __future__ import annotations

from typing import Any

# A number option must refuse each of these, whatever it means.
NO_NUMBERS = ("nan", "inf", "-inf", "1e309", "-1", "NaN", ".nan", ".inf", "-1e300")
ODD_NUMBERS = (
    "-0", "0", "0x10", "1_000", "1e-400", "0.5", "007", "١٢", "½", "1e3", "+1", " 1", "1,5", "true", "1j", "2.5",
    "0b1", "--1", "1e", "²",
)  # fmt: skip
# Sizes beyond every memory; not for what may well take long, such as the number of epochs.
HUGE_NUMBERS = ("1000000000", "9223372036854775808", "1" + "0" * 30, "9" * 5000)
WORDS = (
    "", " ", "\t", "\n", "-", "--", "=", ".", "..", "/", "~", "*", "[", "{", "}", "a=b", "null", "~null", "none", "yes",
    "%s%n", "{0}", "$(touch x)", "`touch x`", "; touch x", "\x1b[2J\x1b]0;x\x07", "a\rb", "a\x00b", "\x7f", "\x9b2J",
    "\udcff", "cat\udc80\udcff", "猫", "e\u0301", "\u202ecod", "\ufeff", "\U0001f600", "A" * 5000, "a/" * 500, "\\",
    "C:\\x", "con", "file:///etc/passwd", "https://example.invalid/x", "hf-hub:a/b", "local-dir:/tmp", "-h", "@x",
    "../../../../escaped", "folder:", "folder:..", "folder:/dev", "folder:\udcff", "timm/", "timm/../x",
    "transformers/../../x", "torchvision/os.system", "__class__", "0", "1e309", "nan",
)  # fmt: skip
YAML = (
    "!!python/object/apply:os.system [touch x]", "!!python/name:os.system ''", "!!binary AAAA", "!!set {a, b}",
    "&a [*a]", "*a", "&a {b: *a}", "[" * 200, "[" * 5000, "{a: " * 300, "{a: {b: {c: {d: 1}}}}", "[1, 2, 3]", "{}",
    "[]", "{1: 2}", "{[1]: 2}", "? x", "|", ">", "2024-01-01", "1:30:00", "'", '"', "\"\\ud800\"", "{a: 1, a: 2}",
    "[.nan, .inf]", "[1, [2]]", "- 1", "# x", "%TAG ! x", "---\n---", "<<: {a: 1}", "0o17", "[[], {}]", "!!float x",
    "&a [&b [*b, *b], *b]",
)  # fmt: skip
# For options that name a place: not outside of the case's own folder, since a user may ask for that.
PLACES = (
    "", " ", ".", "..", "nowhere/at/all", "small.yaml", "small.yaml/x", "images", "/dev/null", "/dev/full", "/dev/zero",
    "/proc/self/mem", "/proc/self/nothing", "a\x00b", "\udcff", "A" * 300, "a/" * 3000, "\x1b[2J", "a\nb", "~",
    "~nobody/x",     "loop", "pipe", "dangling", "run", "run/best", "empty", "-", "x.png", "x.svg", "x.exe", "猫.png",
    "images/a/0.png", "x.png/", "con.png",
)  # fmt: skip
WHOLE_JSON: tuple[str, ...] = (
    "", " ", "null", "[]", "{}", "0", '"x"', "true", "{", "[1, 2", "NaN", "[NaN, Infinity]", "1e999", "9" * 5000,
    "[" * 100_000, '{"a":' * 50_000, "\ufeff{}", '{"a": 1, "a": 2}', "\x00", "[[[[]]]]", "'x'", "{} {}",
)  # fmt: skip
JSON_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 0.5, -0.0, float("nan"), float("inf"), float("-inf"), 10**9, 10**30, -(10**30),
    1e300, "", "x", "\x1b[2J", "a\x00b", "\ud800", "猫", "A" * 5000, "../../../../escaped", "/etc/passwd", "nan", "1",
    "https://example.invalid", [], {}, [[]], [None], [0], [1, 2, 3], [float("nan")] * 3, ["x"], {"a": 1}, {"": None},
    [10**9, 10**9, 10**9], {"__class__": "os.system"}, [0, 0, 0], [-1, -1, -1], [3, 32], [3, 32, 32, 32], "1e309",
    [["a"], ["b"]], [1e300, 1, 1], {"url": "https://example.invalid"}, ["a", "a"],
)  # fmt: skip


def deep(depth: int = 2000) -> list[Any]:
    """Lists in lists."""
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found
