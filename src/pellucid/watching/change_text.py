"""A change as text, for a command line, a link and a request. Texts in quotes are JSON's: \\" is a quote.

layers.2.attn.z[H=3, T=-1] = 0
layers.0.attn.scores[T=4, S=3] = -inf          token 4 does not see token 3
layers.0.ffn[0, 1:3, :] *= 0.5                 an index of every axis, as of an array
layers.2.out[T=4:] += steer.safetensors
layers.1.out[T="France"] = from "The capital of Japan is" [T="Japan"]
layers.1.out without steer.safetensors
layers.1.ffn = layers.1.ffn_norm               another tensor of the same run
layers.1.attn.q.in[T=-1] = 0                   before the operation: what this part alone reads
"""

import json
import math
import re
import sys
from dataclasses import dataclass

from pellucid.errors import UseError
from pellucid.watching.cells import Index
from pellucid.watching.change import At

QUOTED = r'"(?:[^"\\]|\\.)*"'
AT = rf'\[(?:[^\]"]|{QUOTED})*\]'
CHANGE = re.compile(rf"\s*(?P<path>[^\s\[\]]+?)\s*(?P<at>{AT})?\s*(?P<sign>\*=|\+=|=|without(?=\s))\s*(?P<value>.+?)\s*", re.S)
FROM = re.compile(rf'from\s+(?:(?P<quoted>{QUOTED})|(?P<bare>[^"\[]+?))\s*(?P<at>{AT})?', re.S)
LETTERED = re.compile(rf"\s*([A-Z](?:\+[A-Z])*)\s*=\s*({QUOTED}|[-+\d:,\s]*[-+\d:])\s*(?:,(?=\s*[A-Z])|$)", re.S)
ENDS = re.compile(r"(-?\d{1,18})?\s*:\s*(-?\d{1,18})?(?:\s*:\s*(\d{1,18}))?")
PATH = re.compile(r"[A-Za-z_*][\w*]*(\.[\w*]+)*")
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d{1,3})?|[-+]?(inf|nan)")


@dataclass(frozen=True)
class ChangeText:
    """A parsed change. sign: "=", "*=", "+=" or "without".  Of number, file, prompt and reads one is given.

    source: cells of the prompt's run.  reads: the path of a tensor of the same run.
    """

    text: str
    path: str
    at: At
    sign: str
    number: float | None = None
    file: str | None = None
    prompt: str | None = None
    source: At | None = None
    reads: str | None = None


def parse_change(text: str) -> ChangeText:
    """Parse a change. A UseError that says what was found and how changes are written."""
    fits = CHANGE.fullmatch(text)
    if fits is None:
        raise UseError("change.text", found=text)
    at, value, sign = parse_at(fits["at"] or "", text), fits["value"], fits["sign"]
    if sign != "without" and NUMBER.fullmatch(value):
        number = float(value)
        if math.isinf(number) and "inf" not in value:  # 1e400 is beyond float64, and was not meant as infinity
            raise UseError("change.number", change=text, found=value, allowed=f"{-sys.float_info.max:g}..{sys.float_info.max:g}")
        return ChangeText(text, fits["path"], at, sign, number=number)
    if sign == "=" and (other := FROM.fullmatch(value)) is not None:
        prompt = other["bare"] if other["quoted"] is None else unquoted(other["quoted"], text)
        return ChangeText(text, fits["path"], at, sign, prompt=prompt, source=parse_at(other["at"], text) if other["at"] else None)
    if re.fullmatch(r".+\.safetensors(:.+)?", value):
        return ChangeText(text, fits["path"], at, sign, file=value)
    if sign != "without" and PATH.fullmatch(value):
        return ChangeText(text, fits["path"], at, sign, reads=value)
    raise UseError("change.text", found=text)


def parse_at(text: str, change: str) -> At:
    """Parse "[H=3, T=4:, K=0,2]", or an index for every axis, "[0, 1:3, :]". A UseError naming the change for anything else."""
    inner, at, end = text.removeprefix("[").removesuffix("]"), dict[str, Index](), 0
    if inner.strip() and not re.match(r"\s*[A-Z]", inner):
        return tuple(parse_index(part.strip(), change) for part in inner.split(","))
    while end < len(inner):
        fits = LETTERED.match(inner, end)
        if fits is None or fits[1] in at:
            raise UseError("change.at", found=inner[end:].strip(), change=change)
        at[fits[1]], end = parse_index(fits[2].strip(), change), fits.end()
    return at


def parse_index(text: str, change: str) -> Index:
    """Parse 3, -1, 4:, 0,2 or a word in quotes."""
    if text.startswith('"'):
        return unquoted(text, change)
    if (ends := ENDS.fullmatch(text)) is not None:
        start, stop, step = (None if end is None else int(end) for end in ends.groups())
        if step == 0:
            raise UseError("change.at", found=text, change=change)
        return slice(start, stop, step)
    numbers = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[-+]?\d{1,18}", n) for n in numbers):
        raise UseError("change.at", found=text, change=change)
    return int(numbers[0]) if len(numbers) == 1 else tuple(map(int, numbers))


def unquoted(text: str, change: str) -> str:
    """Return the text that JSON writes as `text`. A UseError naming the change if it is none."""
    try:
        return str(json.loads(text))
    except json.JSONDecodeError:
        raise UseError("change.at", found=text, change=change) from None
