"""Our logits against another implementation's, on random and on real weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sparda_core.models.load import load_model, smollm2_path
from sparda_core.models.safetensors_dir import read_directory
from sparda_core.models.weights import EMBED, HEAD

transformers: Any = pytest.importorskip("transformers", reason="the transformers package is not installed")


def tiny_llama(*, tied: bool, dtype: torch.dtype, kv_heads: int = 2) -> Any:
    torch.manual_seed(11)
    config = transformers.LlamaConfig(
        vocab_size=61, hidden_size=36, intermediate_size=56, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=kv_heads, head_dim=8, max_position_embeddings=256, rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 1234.5}, tie_word_embeddings=tied,
        initializer_range=0.3,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:  # fresh norms are all ones, which would hide a norm that is not applied
            parameter.data.uniform_(0.5, 1.5)
    return model.to(dtype)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # the other package's own
@pytest.mark.parametrize(("tied", "kv_heads"), [(True, 2), (False, 3), (False, 1)])
def test_logits_equal_those_of_transformers_on_a_random_checkpoint(
    tmp_path: Path, *, tied: bool, kv_heads: int
) -> None:
    theirs = tiny_llama(tied=tied, dtype=torch.float32, kv_heads=kv_heads)
    theirs.save_pretrained(tmp_path / "tiny")
    ours = load_model(tmp_path / "tiny", dtype=torch.float64).decoder
    ids_BT = torch.randint(0, 61, (2, 70), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        want = theirs.to(torch.float64)(ids_BT, use_cache=False).logits
        got = ours.dense_forward(ids_BT)
    assert float(want.std()) > 0.1
    # their rotary tables are float32 even in a float64 model
    torch.testing.assert_close(got, want, rtol=1e-4, atol=2e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_narrow_dtype_stays_within_its_rounding(tmp_path: Path) -> None:
    theirs = tiny_llama(tied=True, dtype=torch.float32)
    theirs.save_pretrained(tmp_path / "tiny")
    ids_BT = torch.arange(50)[None]
    exact = load_model(tmp_path / "tiny", dtype=torch.float64).decoder.dense_forward(ids_BT)
    ours = load_model(tmp_path / "tiny", dtype=torch.bfloat16).decoder.dense_forward(ids_BT).double()
    with torch.no_grad():
        other = theirs.to(torch.bfloat16)(ids_BT, use_cache=False).logits.double()
    assert float((ours - exact).norm()) < 1.25 * float((other - exact).norm())


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_logits_of_the_real_model_are_close_to_those_of_transformers() -> None:
    assert smollm2_path().suffix == ".gguf"
    model = load_model("smollm2")
    config, shape = model.config, model.shape
    tensors = {name: tensor for name, tensor in _real_tensors().items() if name != HEAD}
    with torch.device("meta"):
        theirs = transformers.LlamaForCausalLM(
            made := transformers.LlamaConfig(
                vocab_size=shape.vocab, hidden_size=shape.hidden, intermediate_size=shape.ffn,
                num_hidden_layers=shape.layers, num_attention_heads=shape.q_heads,
                num_key_value_heads=shape.kv_heads, head_dim=shape.head_dim,
                max_position_embeddings=shape.context, rms_norm_eps=config.norm_eps, tie_word_embeddings=True,
                rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            )
        )  # fmt: skip
    theirs.load_state_dict(tensors | {HEAD: tensors[EMBED]}, strict=True, assign=True)
    theirs.model.rotary_emb = type(theirs.model.rotary_emb)(made)  # its buffer is not in the checkpoint
    assert model.tokenizer is not None
    ids_BT = torch.tensor([model.tokenizer.encode("The capital of France is Paris. In 1789, 14 July was a Tuesday;")])
    with torch.no_grad():
        want = theirs.eval()(ids_BT, use_cache=False).logits
        got = model.decoder.dense_forward(ids_BT)
    torch.testing.assert_close(got, want, rtol=1e-3, atol=2e-3)
    assert model.tokenizer.decode([int(got[0, 4].argmax())]) == " Paris"


def _real_tensors() -> dict[str, torch.Tensor]:
    from sparda_core.models.gguf import read_gguf

    return dict(read_gguf(smollm2_path()).tensors)


def test_a_saved_checkpoint_keeps_its_constants(tmp_path: Path) -> None:
    tiny_llama(tied=False, dtype=torch.float32).save_pretrained(tmp_path / "tiny")
    config, _ = read_directory(tmp_path / "tiny")
    assert (config.rope_theta, config.norm_eps, config.shape.tied_embeddings) == (1234.5, 1e-5, False)
