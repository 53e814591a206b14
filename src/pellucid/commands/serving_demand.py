"""The options of `count` that start from what is wanted: users, times, devices to choose among."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pellucid.errors import UseError

if TYPE_CHECKING:
    from pellucid.terminal.grid import Grid

FORMATS = ("bfloat16", "fp8", "int4")
MOST = 2**20  # users


@dataclass(frozen=True)
class Wanted:
    """The options as they were typed; None where one was not."""

    users: int | None
    ttft: str | None
    tpot: str | None
    devices: str | None
    formats: str | None
    prices: str | None
    efficiency: float | None

    @property
    def any(self) -> bool:
        """True if the count is turned round. A UseError if an option stands without --users."""
        if self.users is not None:
            return True
        for name in ("ttft", "tpot", "devices", "formats", "prices", "efficiency"):
            if getattr(self, name) is not None:
                raise UseError("count.offers.need", name=f"--{name}")
        return False

    def table(self, models: Sequence[str], how: Mapping[str, Any], clashes: Iterable[str]) -> "tuple[str, Grid]":
        """Return the name and the table of one model's offers. how: settings of `count`.  clashes: options that do not go with --users."""
        from pellucid.api.count import count
        from pellucid.counting.offers import Billed, Demand, offers
        from pellucid.terminal.offer_table import offer_table

        if len(models) != 1 or list(clashes):
            raise UseError("count.offers.one", name=", ".join(clashes) or "MODEL MODEL")
        users, share = self.users or 0, 1.0 if self.efficiency is None else self.efficiency
        for name, value, most in (("--users", users, MOST), ("--efficiency", share, 1)):
            if not 0 < value <= most:
                raise UseError("count.offers.range", name=name, found=value, most=most)
        demand = Demand(users, seconds("--ttft", self.ttft), seconds("--tpot", self.tpot), share)
        chosen, by = chosen_devices(self.devices), dict(how)
        hourly = hourly_prices(self.prices, chosen)
        billed = {}
        for form in FORMATS if self.formats is None else names(self.formats):
            one, all_users = (count(models[0], **by | {"batch": n, "dtype": form, "device": None}) for n in (1, users))
            if "flops.decode" not in one:
                raise UseError("count.offers.encoder", model=one.model)
            billed[form] = Billed(one, all_users)
        return "offers", offer_table(one.model, one.setting.context, demand, offers(billed, chosen, demand, hourly), hourly)


def names(text: str) -> list[str]:
    """Return the words of a list with commas, each once."""
    return list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def seconds(name: str, text: str | None) -> float | None:
    """Return the seconds that an option's time says: "1s", "50ms" or "0.05"; None without one."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s)?", text.strip())
    if match is None or not 0 < float(match[1]) < 1e9:
        raise UseError("count.offers.seconds", name=name, found=text)
    return float(match[1]) * (1e-3 if match[2] == "ms" else 1.0)


def chosen_devices(text: str | None) -> dict[str, Any]:
    """Return the devices of a list of names by name, all of the catalogue without one."""
    from pellucid import catalog

    return devices_of(catalog.devices() if text is None else names(text))


def devices_of(wanted: Iterable[str]) -> dict[str, Any]:
    """Return devices by their names or descriptions. A UseError for one that is not known."""
    from pellucid.bench.last_measured import known_device

    return {name: known_device(name) for name in wanted}


def hourly_prices(text: str | None, devices: Mapping[str, Any]) -> dict[str, float]:
    """Return the price of an hour of each device that a list such as "h100=2.5,h200=3.8" names."""
    out: dict[str, float] = {}
    for item in names(text or ""):
        match = re.fullmatch(r"([^=]+)=(\d+(?:\.\d+)?)", item)
        if match is None or match[1] not in devices:
            raise UseError("count.offers.prices", found=item)
        out[match[1]] = float(match[2])
    return out
