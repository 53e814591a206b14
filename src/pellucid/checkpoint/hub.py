"""A model by its id on the Hugging Face hub, or on the mirror that HF_ENDPOINT names: only files that are read are fetched."""

import re
from pathlib import Path

from pellucid.errors import CheckpointError

WANTED = ("*.json", "*.safetensors", "*.txt", "*.jinja")


def is_hub_id(name: str) -> bool:
    """Whether a name has the form owner/model."""
    return re.fullmatch(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", name) is not None


def fetch(name: str) -> Path:
    """The local folder of a hub id, downloaded where it is not yet; HF_HUB_OFFLINE, HF_HOME and HF_TOKEN are honoured."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(WANTED)))
    except Exception as broken:  # the library raises many kinds; each means that the folder is not to be had
        raise CheckpointError("hub.fetch", name=name, reason=str(broken).strip().split("\n")[0]) from None
