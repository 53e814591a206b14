"""A run of training for the page: its document at a recorded step, and why a cell moved there."""

from pathlib import Path

from pellucid.api.run import Run
from pellucid.checkpoint.opening import recorded_runs
from pellucid.documents.training import TrainingDocument, training_document
from pellucid.documents.why import WeightTileDocument, WhyDocument, tile_document, why_document
from pellucid.errors import RequestError
from pellucid.runs.worker import Stop
from pellucid.training.run_folder import RUN


def run_of(name: str) -> Path | None:
    """Return the folder of a run of training, from its path or the name of one that ships. None if it is none."""
    folder = recorded_runs().get(name, Path(name))
    return folder if (folder / RUN).is_file() else None


def trained(folder: Path) -> str | None:
    """Return the folder of the model that a run has finished. None while it trains."""
    model = folder / "model"
    return str(model) if (model / "config.json").is_file() else None


class Learning:
    """The run of training that a server shows. folder: None for a server without one."""

    def __init__(self, folder: Path | None) -> None:
        self.run = None if folder is None else Run(folder)

    def opened(self) -> Run:
        """Return the run. A RequestError without one."""
        if self.run is None:
            raise RequestError("server.training", 404)
        return self.run

    def document(self, step: int | None) -> TrainingDocument:
        """Return the run at a recorded step."""
        return training_document(self.opened(), step)

    def why(self, step: int, weight: str, cell: str, stop: Stop) -> WhyDocument:
        """Return why a weight's cell moved in a step. cell: its indices, as "5,17"."""
        run, index = self.opened(), indices(cell)
        stop.check()
        return why_document(run, step, weight, index)

    def tile(self, step: int, weight: str, cell: str) -> WeightTileDocument:
        """Return how far a recorded step moved the cells of a weight about one of them."""
        return tile_document(self.opened(), step, weight, indices(cell))


def indices(cell: str) -> list[int]:
    """Return the indices of a cell, as "5,17". A RequestError if it is none."""
    try:
        return [int(word) for word in cell.split(",")]
    except ValueError:
        raise RequestError("server.field", 400, "cell", name="cell", found=cell, allowed="5,17") from None
