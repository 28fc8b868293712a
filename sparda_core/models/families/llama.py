"""Llama and what is built alike: SmolLM2 (a Llama by name), Qwen2 with biases, Qwen3 with norms of heads."""

from __future__ import annotations

from sparda_core.errors import ConfigError, WeightsError
from sparda_core.models.config import DecoderConfig
from sparda_core.models.families.rope import read_rope
from sparda_core.models.families.settings import Settings
from sparda_core.models.rope_scaling import RopeScaling
from sparda_core.shapes import ModelShape

#: No model reads texts of more tokens; a table of positions as long as a file asks for would fill a device.
MOST_TOKENS = 2**24


def llama(settings: Settings) -> DecoderConfig:
    """Llama 1 to 3, SmolLM2: no biases, no norms of heads, any known scaling of rotary positions."""
    refuse_foreign_parts(settings)
    return read_common(settings)


def qwen2(settings: Settings) -> DecoderConfig:
    """Qwen2 and Qwen2.5: a bias in the query, key and value projections, and nowhere else."""
    refuse_foreign_parts(settings)
    return read_common(settings, heads_default=None, qkv_bias=True)


def qwen3(settings: Settings) -> DecoderConfig:
    """Qwen3: an RMSNorm of every query and key head before its rotation; heads of 128 values unless said otherwise."""
    refuse_foreign_parts(settings)
    return read_common(settings, heads_default=None, head_dim=settings.integer("head_dim", 128), qk_norm=True)


def refuse_foreign_parts(settings: Settings) -> None:
    """Raise WeightsError for whatever a checkpoint of this kind may have and our decoder has not."""
    settings.must_be("hidden_act", "silu")
    for key in ("attention_bias", "mlp_bias"):
        settings.must_be(key, False, why="such biases are not implemented")
    settings.must_be("rope_interleaved", False, why="a head's halves are rotated together, not its neighbours")
    settings.must_be("use_sliding_window", False, why="layers with a sliding window are not implemented")
    if settings.get("sliding_window") is not None and "use_sliding_window" not in settings.raw:
        raise settings.refusal("sliding_window", "absent", why="layers with a sliding window are not implemented")
    kinds = settings.get("layer_types", [])
    if not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds):
        raise settings.refusal("layer_types", "'full_attention' in every layer")
    for key in ("num_experts", "num_local_experts", "n_routed_experts"):
        if settings.get(key):
            raise settings.refusal(key, "absent", why="mixtures of experts are not implemented")
    if settings.get("dual_chunk_attention_config"):
        raise settings.refusal("dual_chunk_attention_config", "absent", why="attention in chunks is not implemented")
    for key in ("quantization_config", "compression_config"):
        if settings.get(key):
            raise settings.refusal(key, "absent", why="use the checkpoint in bfloat16, float16 or float32")


def read_common(
    settings: Settings, *, heads_default: str | None = "num_attention_heads", head_dim: int | None = None,
    tied: bool = False, rope: tuple[float, RopeScaling | None] | None = None, **more: bool,
) -> DecoderConfig:  # fmt: skip
    """What all these families say alike.

    heads_default  the key that stands in for an absent num_key_value_heads; None: it must be there
    head_dim       None: `head_dim`, or hidden size / heads
    tied           where tie_word_embeddings is absent
    rope           None: as `read_rope` reads it
    more           further fields of ModelShape
    raises         WeightsError for anything absent, of a wrong kind or out of bounds
    """
    hidden, q_heads = settings.integer("hidden_size"), settings.integer("num_attention_heads")
    kv_heads = settings.integer("num_key_value_heads", None)
    if kv_heads is None:
        kv_heads = settings.integer(heads_default or "num_key_value_heads")
    ends = settings.ids("eos_token_id")
    try:
        theta, scaling = rope or read_rope(settings)
        shape = ModelShape(
            name=settings.name,
            layers=settings.integer("num_hidden_layers"),
            hidden=hidden,
            ffn=settings.integer("intermediate_size"),
            q_heads=q_heads,
            kv_heads=kv_heads,
            head_dim=head_dim or settings.integer("head_dim", None) or _even_share(settings, hidden, q_heads),
            vocab=settings.integer("vocab_size"),
            context=_context(settings, scaling),
            tied_embeddings=settings.flag("tie_word_embeddings", tied),
            **more,
        )
        return DecoderConfig(
            shape=shape, rope_theta=theta, rope_scaling=scaling, norm_eps=settings.number("rms_norm_eps", 1e-6),
            bos_id=_first(settings.ids("bos_token_id")), eos_id=_first(ends), end_ids=ends,
            pad_id=_first(settings.ids("pad_token_id")),
        )  # fmt: skip
    except WeightsError:
        raise
    except (ArithmeticError, ConfigError) as error:
        raise WeightsError(f"{settings.source}: {error}") from error


def _even_share(settings: Settings, hidden: int, heads: int) -> int:
    if heads < 1 or hidden % heads:
        raise WeightsError(f"{settings.source}: hidden_size={hidden} must be a multiple of num_attention_heads={heads}")
    return hidden // heads


def _context(settings: Settings, scaling: RopeScaling | None) -> int:
    said: int = settings.integer("max_position_embeddings")
    context = said if scaling is None else scaling.stretched(said)
    if context > MOST_TOKENS:
        raise WeightsError(f"{settings.source}: a context of {context} tokens must be <= {MOST_TOKENS}")
    return context


def _first(ids: tuple[int, ...]) -> int | None:
    return ids[0] if ids else None
