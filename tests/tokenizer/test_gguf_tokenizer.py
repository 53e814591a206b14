"""A tokenizer in GGUF's keys and back gives the ids of the folder it came from, on texts in several scripts."""

import json
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from pellucid.checkpoint.gguf.gguf_folder import GgufFolder
from pellucid.checkpoint.gguf.gguf_writer import write_gguf
from pellucid.checkpoint.gguf.written_tokenizer import tokenizer_keys_of
from pellucid.errors import PellucidError
from pellucid.tokenizer.tokenizer import Tokenizer, load_tokenizer
from small_tokenizers import TEXTS, byte_level, sentencepiece

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}"


def folder_of(made: tokenizers.Tokenizer, path: Path, **named: str) -> Tokenizer:
    """Write a tokenizer as transformers does, and load it."""
    path.mkdir()
    made.save(str(path / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE, **{f"{k}_token": v for k, v in named.items()}}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    read = load_tokenizer(path)
    assert read is not None
    return read


def in_gguf(tokenizer: Tokenizer, path: Path, stops: tuple[int, ...] = ()) -> GgufFolder:
    """Write a tokenizer's keys in a file without tensors."""
    rows = tokenizer.size + 5
    write_gguf(path, {"general.architecture": "llama", **tokenizer_keys_of(tokenizer, rows, stops)}, [])
    return GgufFolder(path)


def alike(ours: Tokenizer, theirs: Tokenizer) -> None:
    for text in TEXTS:
        for parse in (False, True):
            assert ours.encode(text, parse=parse) == theirs.encode(text, parse=parse), text
        ids = theirs.encode(text)
        assert ours.decode(ids) == theirs.decode(ids)
    messages = [{"role": "user", "content": "the capital <|im_start|>"}]
    assert ours.chat(messages) == theirs.chat(messages) and ours.special == theirs.special


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2", "gpt-4o", "tekken", "chatglm-bpe", "deepseek-v3", "smollm"])
@pytest.mark.quick(4)
def test_byte_level_comes_back(pre: str, tmp_path: Path) -> None:
    theirs = folder_of(byte_level(pre), tmp_path / "folder", bos="<|begin|>", eos="<|im_end|>")
    file = in_gguf(theirs, tmp_path / "model.gguf")
    assert file.keys["tokenizer.ggml.pre"] == pre
    ours = file.tokenizer()
    assert ours is not None
    alike(ours, theirs)
    with file.carried() as files:  # and the folder that would be saved
        (tmp_path / "saved").mkdir()
        for name, content in files.items():
            (tmp_path / "saved" / name).write_bytes(content)
    saved = load_tokenizer(tmp_path / "saved")
    assert saved is not None
    alike(saved, theirs)


@pytest.mark.parametrize("spaced", [True, False])
def test_sentencepiece_comes_back(spaced: bool, tmp_path: Path) -> None:
    theirs = folder_of(sentencepiece(spaced), tmp_path / "folder", bos="<s>", eos="</s>", unk="<unk>")
    file = in_gguf(theirs, tmp_path / "model.gguf", (2, theirs.encode("<|im_end|>", parse=True)[-1]))
    assert (file.keys["tokenizer.ggml.model"], file.keys["tokenizer.ggml.add_space_prefix"]) == ("llama", spaced)
    ours = file.tokenizer()
    assert ours is not None
    alike(ours, theirs)


def test_what_no_name_fits_is_refused(tmp_path: Path) -> None:
    """A way to cut words, and a kind of model, that llama.cpp has no name for; a name that is not read."""
    made = byte_level("gpt-2")
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Punctuation(), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    with pytest.raises(PellucidError, match=r"no name for a tokenizer of .*Punctuation"):
        in_gguf(folder_of(made, tmp_path / "cut"), tmp_path / "a.gguf")
    unigram = tokenizers.Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0)], unk_id=0))
    with pytest.raises(PellucidError, match="no name for a tokenizer of Unigram"):
        in_gguf(folder_of(unigram, tmp_path / "unigram"), tmp_path / "a.gguf")
    keys = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "klingon", "tokenizer.ggml.tokens": ["a"]}
    write_gguf(tmp_path / "b.gguf", {"general.architecture": "llama", **keys}, [])
    with pytest.raises(PellucidError, match=r"tokenizer\.ggml\.pre is klingon, which is not read; read are gpt-2, llama-bpe, qwen2"):
        GgufFolder(tmp_path / "b.gguf").tokenizer()
