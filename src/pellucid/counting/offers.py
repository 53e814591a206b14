"""The count turned round: the devices, their number and the split that serve a number of users, at the bound.

A bill says how fast a device can be. An offer starts from what is wanted: requests at a context, a first token and every further one
in time. It finds the fewest devices of a kind whose memory and bounds allow it, over every even split of the model.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pellucid.counting.bill import Bill
from pellucid.counting.bounds import Device
from pellucid.counting.ranks import Split, largest_batch, most_held, pace, stack
from pellucid.errors import UseError

RANKS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Demand:
    """What is wanted. users: requests that decode at once, each at the bill's context.

    first: seconds to a lone request's first token at most.  between: seconds between two tokens of each user at most; None: any.
    efficiency: the share of the bound that is reached, 1 for the bound itself.
    """

    users: int
    first: float | None = None
    between: float | None = None
    efficiency: float = 1.0


@dataclass(frozen=True)
class Offer:
    """Devices of a kind that hold a model in a format. fullest: bytes on the fullest one, of `users` requests.

    most: users that fit, None for any number.  first, between: seconds at the demanded efficiency.  lacks: what is not met ("memory",
    "first" or "between"), "" if all is.
    """

    device: Device
    name: str
    weights: str
    split: Split
    users: int
    fullest: int
    most: int | None
    first: float
    between: float
    lacks: str

    @property
    def rate(self) -> float:
        """Tokens a second of all users together."""
        return self.users / self.between

    def price(self, hour: float) -> float:
        """Return the cost of a million tokens that these users are written, at `hour` an hour and device."""
        return self.split.ranks * hour / 3600 / self.rate * 1e6


@dataclass(frozen=True)
class Billed:
    """A model in one format: the bill of one request, for its first token, and the bill of all users."""

    one: Bill
    all: Bill


def splits(bill: Bill, ranks: int) -> Iterator[Split]:
    """Yield every split of the model over this number of ranks: tensors, layers, and experts where there are any."""
    experts = any(one.ffn.experts for one in stack(bill.config))
    for pp in (n for n in RANKS if ranks % n == 0):
        width = ranks // pp
        for tp in (n for n in RANKS if width % n == 0):
            for ep in (n for n in RANKS if width % n == 0 and max(tp, n) == width) if experts else (1,):
                if max(tp, ep) == width:
                    yield Split(tp, pp, ep)


def offer(billed: Billed, name: str, device: Device, split: Split, demand: Demand) -> Offer | None:
    """Return what a split of the model offers on these devices; None if a head, a neuron or an expert would be cut."""
    try:
        fullest = most_held(billed.all, split, billed.all.setting.context, demand.users)
    except UseError:
        return None
    first, between = (
        pace(bill, split, phase, device).seconds / demand.efficiency for bill, phase in ((billed.one, "prefill"), (billed.all, "decode"))
    )
    limits = (("first", first, demand.first), ("between", between, demand.between))
    late = [what for what, seconds, longest in limits if longest is not None and seconds > longest]
    lacks = "memory" if fullest > device.memory else late[0] if late else ""
    most = largest_batch(billed.all, split, device) if lacks != "memory" else 0
    return Offer(device, name, billed.all.setting.weights, split, demand.users, fullest, most, first, between, lacks)


def fewest(billed: Billed, name: str, device: Device, demand: Demand, most: int = RANKS[-1]) -> Offer:
    """Return the offer with the fewest devices that meets the demand, the quickest of its splits; else the nearest one that was tried."""
    nearest: Offer | None = None
    for ranks in (n for n in RANKS if n <= most):
        made = [o for split in splits(billed.all, ranks) if (o := offer(billed, name, device, split, demand)) is not None]
        if met := [o for o in made if not o.lacks]:
            return min(met, key=lambda o: (o.between, o.first))
        nearest = min([*made, *([nearest] if nearest else [])], key=shortfall)
    assert nearest is not None  # one rank cuts nothing
    return nearest


def shortfall(o: Offer) -> tuple[int, float]:
    """Return how far an offer is from what is wanted: memory counts before time."""
    return (1, o.fullest / o.device.memory) if o.lacks == "memory" else (0, o.between + o.first)


def offers(formats: Mapping[str, Billed], devices: Mapping[str, Device], demand: Demand, prices: Mapping[str, float]) -> list[Offer]:
    """Return an offer of each device in each format: what meets the demand first, by price where all have one, else by devices and time."""
    out = [fewest(billed, name, device, demand) for name, device in devices.items() for billed in formats.values()]
    priced = set(devices) <= set(prices)
    return sorted(out, key=lambda o: (o.lacks != "", o.price(prices[o.name]) if priced else o.split.ranks, o.between))
