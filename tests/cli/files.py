"""Where the tiny model of these tests lies, and how large it is."""

from __future__ import annotations

from pathlib import Path

import attrs

from sparda_core.shapes import ModelShape

# Heads as wide as infinigen's 32 channels.
TINY = ModelShape(
    name="tiny", layers=3, hidden=64, ffn=48, q_heads=4, kv_heads=2, head_dim=32, vocab=256, context=2048,
    tied_embeddings=True,
)  # fmt: skip

#: Small blocks, so that a few hundred tokens are worth choosing from.
SPEC = ("--block", "16", "--window", "16", "--stride", "8", "--budget", "6", "--local", "1")


@attrs.frozen(kw_only=True)
class Files:
    """A checkpoint directory, Forecast weights for it, and a text of some 2,500 tokens."""

    model: Path
    forecast: Path
    text: Path

    @property
    def options(self) -> tuple[str, ...]:
        """Options that name the model and its Forecast, one core."""
        return ("--model", str(self.model), "--forecast", str(self.forecast), "--threads", "1")

    def reading(self, tokens: int) -> tuple[str, ...]:
        """Options that read the first so many tokens of the text."""
        return ("--text", str(self.text), "--max-tokens", str(tokens))
