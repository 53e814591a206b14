"""A module trained two tokens ahead: the model stays as it is, losses are those of the tokens two ahead, and guesses are of them."""

import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

import pellucid
from pellucid.analysis.two_ahead import TwoAhead, of_catalogue, stored_module
from pellucid.checkpoint.multi_token_files import write_file
from pellucid.checkpoint.opening import SPECIMENS
from pellucid.exhibits.exhibit import exhibit


@pytest.fixture(scope="module")
def two() -> TwoAhead:
    made = TwoAhead(pellucid.load("pellucid/capitals-llama", dtype="float64"))
    made.train(3)
    return made


def test_training_leaves_the_model_alone(two: TwoAhead) -> None:
    stored = pellucid.load("pellucid/capitals-llama", dtype="float64").module.state_dict()
    assert all(torch.equal(p, stored[path]) for path, p in two.model.module.state_dict().items())
    assert two.model.module.embed.weight.grad is None
    assert len(two.losses) == 3 and two.parameters == sum(p.numel() for p in two.module.parameters())


def test_a_loss_is_that_of_the_tokens_two_ahead(two: TwoAhead) -> None:
    """By hand, a token at a time; with the next tokens in their place it would be another."""
    tokens = torch.tensor([two.model.ids("The capital of France is Paris.")])
    with torch.no_grad():
        logits = two.logits(tokens, two.following(tokens))[0]
        got = float(two.loss(tokens, two.following(tokens)))
    shares = logits.log_softmax(-1)
    wanted, shifted = (-sum(shares[i, tokens[0, i + by]] for i in range(len(shares))) / len(shares) for by in (2, 1))
    assert got == pytest.approx(float(wanted), abs=1e-10)
    assert got != pytest.approx(float(shifted), abs=1e-3)


def test_padding_carries_no_loss(two: TwoAhead) -> None:
    tokens = torch.tensor([two.model.ids("The capital of France is Paris.")])
    padded = torch.nn.functional.pad(tokens, (0, 3), value=-100)
    with torch.no_grad():
        assert float(two.loss(padded, two.following(padded))) == pytest.approx(float(two.loss(tokens, two.following(tokens))), abs=1e-10)


def test_guesses_name_the_text(two: TwoAhead) -> None:
    ids = two.model.ids("The capital of France is Paris.")
    guesses = two.guesses(ids)
    assert [g.token for g in guesses] == ids[:-2] and [g.fed for g in guesses] == ids[1:-1] and [g.actual for g in guesses] == ids[2:]
    assert [g.fed for g in two.guesses(ids, fed_right=False)] == ids[:-2]


def test_measured_with_the_wrong_token_is_the_mistaken_loss(two: TwoAhead) -> None:
    with torch.no_grad():
        wrong = two.measured(fed_right=False)
    assert wrong.second == wrong.mistaken and 0 <= wrong.share <= 1


def test_of_catalogue() -> None:
    assert of_catalogue("deepseek-v3") == 11_610_067_968


def test_a_folders_own_module_is_read(two: TwoAhead, tmp_path: Path) -> None:
    """It says what it said before it was written, and the exhibit shows it and trains none; a folder without one has none."""
    assert stored_module(two.model) is None
    folder = Path(shutil.copytree(SPECIMENS / "capitals-llama", tmp_path / "own"))
    write_file(folder, nn.ModuleList([two.module]))
    model = pellucid.load(folder, dtype="float64")
    module = stored_module(model)
    assert module is not None
    with torch.no_grad():
        assert TwoAhead(model, module).measured() == two.measured()
    shown = exhibit("second", model)
    assert not any(claim.key == "falls" for claim in shown.claims) and any("folder" in panel.title for panel in shown.panels)
