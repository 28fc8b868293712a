"""Which function reads the config.json of which model type."""

from __future__ import annotations

from collections.abc import Callable

from sparda_core.errors import UnknownNameError, WeightsError
from sparda_core.models.config import DecoderConfig
from sparda_core.models.families.llama import llama, qwen2, qwen3
from sparda_core.models.families.minicpm import minicpm
from sparda_core.models.families.settings import Settings

#: A family turns settings into constants, or raises WeightsError. Which tensors a checkpoint must have follows from the
#: constants alone: weights.expected_tensors.
Family = Callable[[Settings], DecoderConfig]

#: By the `model_type` of config.json.
FAMILIES: dict[str, Family] = {
    "llama": llama,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "minicpm": minicpm,
}


def read_config(settings: Settings) -> DecoderConfig:
    """The constants of a checkpoint; raises WeightsError for a family that is not known, or what the family refuses."""
    kind = settings.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        nearest = UnknownNameError(what="model_type", name=str(kind), known=FAMILIES)
        raise WeightsError(f"{settings.source}: {nearest}")
    return FAMILIES[kind](settings)
