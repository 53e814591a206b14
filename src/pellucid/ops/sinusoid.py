"""Fixed positions: sines and cosines of waves from 2π to 20,000π tokens long (arXiv 1706.03762, section 3.5)."""

import torch
from torch import Tensor

from pellucid.ops import native
from pellucid.ops.kinds import Operands, OpKind
from pellucid.ops.precision import wide
from pellucid.watching.tap import Settings, note
from pellucid.watching.terms import Index, Terms


def wave_text(m: Operands) -> str:
    """Write the waves of a row's position, as counted in the table."""
    at = f"t + {m.setting('skip')}" if m.setting("skip", 0) else "t"
    return f"waves({at})" if m.setting("last") else f"float32(sincos({at}))"


SINUSOID = OpKind("sinusoid", wave_text, labels={"wave": wave_text})


def sinusoids(positions: Tensor, width: int, dtype: torch.dtype, skip: int = 0, last: bool = False) -> Tensor:
    """Compute sines and cosines of positions [B T] + skip. Returns [B T width]: all sines, then all cosines (the paper alternates).

    last: the longest wave has 20,000π tokens itself, as in fairseq. Otherwise, as in the paper and in Marian, it is the one after it, and
    the values are rounded to float32, as in the table that Marian's models are trained with.
    """
    sines, table = -(-width // 2), wide(torch.bfloat16)
    over = max(1, sines - 1) if last else width / 2  # the waves' numbers over this are the exponents of 10,000

    def terms(i: Index) -> Terms:
        angle = (positions[i[:-1]].double() + skip) / 10_000.0 ** ((i[-1] % sines) / over)
        wave = angle.sin() if i[-1] < sines else angle.cos()
        return Terms(wave=wave if last else wave.to(table)).of(angle=angle)

    def settings() -> Settings:
        return {"width": width, "skip": skip, "last": int(last)}

    if native.fits_angles(positions, dtype):
        return note(native.waves(positions, width, skip, over, dtype), SINUSOID.name, (), (), terms, settings=settings)
    at = torch.arange(sines, device=positions.device, dtype=torch.float64) / over
    angle = (positions[..., None].double() + skip) / 10_000.0**at
    waves = torch.cat([angle.sin(), angle.cos()[..., : width // 2]], -1)
    y = (waves if last else waves.to(table)).to(dtype)
    return note(y, SINUSOID.name, (), (), terms, settings=settings)
