"""Fixed positions: sines and cosines of waves from 2π to 20,000π tokens long (arXiv 1706.03762, section 3.5)."""

import torch
from torch import Tensor

from pellucid.ops import native
from pellucid.ops.kinds import OpKind
from pellucid.ops.precision import wide
from pellucid.watching.tap import note
from pellucid.watching.terms import Index, Terms

SINUSOID = OpKind("sinusoid", lambda m: "float32(sincos(t))", labels={"wave": lambda m: "float32(sincos(t))"})


def sinusoids(positions: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Compute sines and cosines of positions [B T]. Returns [B T width]: all sines, then all cosines, as in Marian (the paper alternates).

    The values are rounded to float32, as in the table that models of this kind are trained with.
    """

    def terms(i: Index) -> Terms:
        sines = -(-width // 2)
        angle = positions[i[:-1]].double() / 10_000.0 ** (2 * (i[-1] % sines) / width)
        wave = angle.sin() if i[-1] < sines else angle.cos()
        return Terms(wave=wave.to(wide(torch.bfloat16))).of(angle=angle)

    if native.fits_angles(positions, dtype):
        y = native.waves(positions, width, dtype)
        return note(y, SINUSOID.name, (), (), terms, settings=lambda: {"width": width})
    at = torch.arange(0, width, 2, device=positions.device, dtype=torch.float64) / width
    angle = positions[..., None].double() / 10_000.0**at
    y = torch.cat([angle.sin(), angle.cos()[..., : width // 2]], -1).to(wide(torch.bfloat16)).to(dtype)
    return note(y, SINUSOID.name, (), (), terms, settings=lambda: {"width": width})
