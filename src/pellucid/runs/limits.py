"""Every limit of runs and of the server in one table: of one request, and of memory kept between requests."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The limits, in bytes, counts and seconds."""

    body: int = 1_000_000  # bytes of a request
    query: int = 4_000  # characters of an address' query
    patience: float = 10.0  # seconds for a head to arrive, and then for a body; for a connection without the token
    answer: float = 60.0  # seconds in which an answer must be read
    idle: float = 30.0  # seconds between two requests of a connection
    tokens: int = 8_192  # of a prompt
    new: int = 256  # tokens of one run
    trials: int = 4_096  # of a sweep
    sweep_rows: int = 2_048  # tokens that run together in one
    steps: int = 1 << 16  # of a trace; a file may say any number
    changes: int = 64  # of one run
    switches: int = 16  # of one run
    switch: int = 200  # characters of one
    candidates: int = 20  # of a step
    column_numbers: int = 250_000  # of factors in the terms that a saved page carries
    column_cells: int = 4_000  # cells with terms in it
    rows: int = 1_000  # tokens in a document of sampling
    waiting: int = 8  # runs in the queue
    runs: int = 32  # kept; the least recently used goes first
    trace: int = 256 << 20  # bytes of the tensors of one watched request of a server for clients
    kept: int = 2 << 30  # bytes of all that outlives a request: see memory_budget.Budget
    work: int = 6 << 30  # bytes that one run, or one table, may take beside that while it is computed
    value: int = 64 << 20  # bytes of a value that a run keeps; a larger one is computed again on request
    tables: int = 64 << 20  # bytes of a run's scores and patterns; beyond it each is computed on request
    table: int = 1 << 30  # bytes of scores or a pattern computed on request
    measured: int = 1 << 24  # numbers of a tensor whose stats come with the run; those of a larger one are computed on request
    slice: int = 64 << 20  # bytes of one answer
    source: int = 4 << 30  # bytes of the part that a pooled slice is made from
    summands: int = 1 << 16  # of a cell's document
    models: int = 4  # in memory beside the one that was opened
    bills: int = 64  # counts kept
    bench_context: int = 512  # tokens that a measurement reads
    bench_steps: int = 32  # of decoding that it times
    bench_work: int = 500_000_000_000  # FLOP of one prefill in it: about ten of them run
    connections: int = 64  # that have shown the token
    strangers: int = 32  # connections that have not; of more, the oldest goes

    @property
    def letters(self) -> int:
        """Return the most characters of a prompt: a longer one is refused before it is encoded."""
        return 32 * self.tokens


LIMITS = Limits()
