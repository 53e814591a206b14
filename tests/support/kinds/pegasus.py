"""pegasus, tiny: as marian's, in its own class."""

from dataclasses import replace

from kinds import blenderbot

KIND = replace(blenderbot.KIND)
