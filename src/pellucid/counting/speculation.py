"""What a draft model costs and gives at best: memory, and tokens a second by the share of its guesses that are accepted.

A step computes the newest token and k guesses behind it, which the draft wrote in k steps of its own, a row each. If each guess is accepted
with chance a once those before it were, the step writes 1 + a + a² + ... + aᵏ tokens of a text (arXiv 2211.17192, equation 1).
"""

from dataclasses import dataclass

from pellucid.counting.bill import Bill
from pellucid.counting.bounds import Device, parts
from pellucid.counting.fit import bytes_held
from pellucid.counting.number import Number, figure, total
from pellucid.errors import UseError

SHARES = (0.3, 0.5, 0.7, 0.8, 0.9)  # accepted, where none is given


@dataclass(frozen=True)
class Drafted:
    """A model with a draft. most: guesses a step at most."""

    model: Bill
    draft: Bill
    most: int

    def __post_init__(self) -> None:
        """Raise a UseError for a model that takes no guesses, and for a draft that writes none."""
        for bill in (self.model, self.draft):
            if bill.config.encoder is not None:
                raise UseError("speculate.source", model=bill.model)
            if any(True for _ in bill.below("states")):
                raise UseError("speculate.states", model=bill.model)
            if "flops.decode" not in bill:
                raise UseError("speculate.draft", model=bill.model)

    @property
    def memory(self) -> Number:
        """The bytes of both models' weights, and of the cache of every request in both."""
        sizes = []
        for name, bill in (("model", self.model), ("draft", self.draft)):
            s, weights = bill.setting, int(bill["bytes.total"])
            sizes += [(f"{name}.weights", weights), (f"{name}.cache", bytes_held(bill, s.context, s.batch) - weights)]
        return total((name, 1, Number(size)) for name, size in sizes)

    def best(self, accepted: float, device: Device | None) -> "Guessing":
        """Return the number of guesses that writes most tokens a second, if this share of them is accepted; the most without a device."""
        every = [Guessing(self, accepted, k) for k in range(1, self.most + 1)]
        return every[-1] if device is None else max(every, key=lambda g: float(g.rate(device).value))


@dataclass(frozen=True)
class Guessing:
    """Steps of k guesses, of which a share is accepted."""

    of: Drafted
    accepted: float
    k: int

    @property
    def tokens(self) -> Number:
        """The tokens that a step writes of a text, on average."""
        value = sum(self.accepted**i for i in range(self.k + 1))
        return Number(value, "Σ aⁱ, i = 0..k", f"Σ {self.accepted:g}ⁱ, i = 0..{self.k}")

    def seconds(self, device: Device) -> Number:
        """Return the least time of a step: k of the draft, and one of the model with k + 1 rows of each text."""
        guess, check = least(self.of.draft, device), least(self.of.model, device, self.k + 1)
        return Number(self.k * guess + check, "k · draft + model(k + 1 rows)", f"{self.k} · {figure(guess)} + {figure(check)}")

    def rate(self, device: Device) -> Number:
        """Return the most tokens a second, over all requests."""
        batch, tokens, seconds = self.of.model.setting.batch, float(self.tokens.value), float(self.seconds(device).value)
        return Number(batch * tokens / seconds, "B · tokens / seconds", f"{batch:,} · {figure(tokens)} / {figure(seconds)}")

    def over_plain(self, device: Device) -> Number:
        """Return how many times as fast this is as decoding without a draft."""
        plain, rate = self.of.model.setting.batch / least(self.of.model, device), float(self.rate(device).value)
        return Number(rate / plain, "rate / rate without a draft", f"{figure(rate)} / {figure(plain)}")


def least(bill: Bill, device: Device, rows: int = 1) -> float:
    """Return the least seconds of a decode step with this number of rows of each request."""
    return sum(p.seconds for p in parts(bill, "decode", device, rows=rows))
