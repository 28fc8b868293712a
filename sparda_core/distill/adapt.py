"""Continue a model's own training under sparse attention, so that it is used to what selection leaves it.

The published bases had learnt with block-sparse attention before any Forecast was distilled from them. This is the
same for a small model: next-token loss, every token after a document's prompt attending to the blocks that its own
queries select (InfLLM-V2), gradients through attention and not through the choice. All weights are trained.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import attrs
import torch
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from sparda_core.distill.backbone import attend_dense
from sparda_core.distill.checkpoint import Checkpoint, identity, read_checkpoint, write_checkpoint
from sparda_core.distill.config import TrainConfig
from sparda_core.distill.history import History, Step
from sparda_core.distill.lesson import LayerLesson
from sparda_core.distill.rows import Corpus, Draw, Row, Rows
from sparda_core.distill.selected import Selection
from sparda_core.distill.train import Habits, check_step
from sparda_core.models.config import DecoderConfig
from sparda_core.models.decoder import Decoder
from sparda_core.models.rotary import Rotation

#: What a run's config and checkpoint say it learns.
OBJECTIVE = "next-token"
#: Tokens whose logits are there at once.
_LOGITS = 1024


@attrs.frozen(kw_only=True, eq=False)
class Adapted:
    """The trained weights by checkpoint name, float32 (float64 from float64), what every step told, and wall time."""

    weights: Mapping[str, torch.Tensor]
    history: History
    wall_s: float


def adapt(
    constants: DecoderConfig, weights: Mapping[str, torch.Tensor], data: Corpus, config: TrainConfig, habits: Habits,
    *, dtype: torch.dtype,
) -> Adapted:  # fmt: skip
    """Train every tensor of `weights` on rows of a corpus; they are changed in place where they are float32 already.

    config  of it count spec (its budget is what is attended), steps, batch, window, documents, first_position (tokens
            of the prompt, which attend densely), the optimiser's numbers, seed and chunk_mib
    habits  checkpoint, checkpoint_every, resume, on_step, base_model
    dtype   that products are computed in; masters, moments and gradients are float32 at least
    raises  ConfigError for too little text, a checkpoint of another run, or a loss that is no longer a number
    """
    rows = Rows(data, window=config.window, mode=config.documents, least=config.first_position + 1)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    masters = {name: tensor.detach().to(wide).requires_grad_() for name, tensor in weights.items()}
    leaves = list(masters.values())
    optimiser = torch.optim.AdamW(
        leaves, lr=config.lr, betas=(0.9, 0.95), eps=config.eps, weight_decay=config.weight_decay
    )
    run = identity(config, data.sha256, habits.base_model)
    history, earlier_s = History(), 0.0
    if habits.resume and habits.checkpoint is not None and habits.checkpoint.exists():
        saved = read_checkpoint(habits.checkpoint, run, [leaf.shape for leaf in leaves])
        history, earlier_s = saved.restore(leaves, optimiser), saved.wall_s
    draw, start = Draw(rows, config), time.perf_counter() - earlier_s
    for done in range(history.steps + 1, config.steps + 1):
        batch = [draw((done - 1) * config.batch + number)[0] for number in range(config.batch)]
        loss = _fill_gradients(constants, masters, batch, config, dtype)
        for group in optimiser.param_groups:
            group["lr"] = config.lr_at(done - 1)
        norm = torch.nn.utils.clip_grad_norm_(leaves, config.clip or float("inf"))
        check_step(done, loss, float(norm), config)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        told = Step(step=done, loss=loss, lr=config.lr_at(done - 1), norm=float(norm), by_layer=(loss,))
        history.told.append(told)
        if habits.checkpoint and (done % habits.checkpoint_every == 0 or done == config.steps):
            spent_s = time.perf_counter() - start
            write_checkpoint(habits.checkpoint, Checkpoint.take(run, leaves, optimiser, history, spent_s))
        if habits.on_step is not None:
            habits.on_step(told)
    trained = {name: leaf.detach() for name, leaf in masters.items()}
    return Adapted(weights=trained, history=history, wall_s=time.perf_counter() - start)


def _fill_gradients(
    constants: DecoderConfig, masters: Mapping[str, torch.Tensor], batch: Sequence[Row], config: TrainConfig,
    dtype: torch.dtype,
) -> float:  # fmt: skip
    """Fill every master's gradient with that of the mean loss of the batch's tokens; returns that loss."""
    count = sum(len(row.ids) - len(row.lengths) for row in batch)
    total = 0.0
    for row in batch:
        decoder = Decoder(constants, {name: master.to(dtype) for name, master in masters.items()})
        loss = token_losses(decoder, row.ids, row.lengths, config, sparse=True).sum() / count
        loss.backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
    return total


def token_losses(
    decoder: Decoder, ids_T: torch.Tensor, lengths: Sequence[int], config: TrainConfig, *, sparse: bool
) -> torch.Tensor:
    """Loss of every token that follows another of its document, in order, nats; differentiable.

    ids_T   int [T]; lengths  of the documents that it is made of, each from position 0 and by itself
    sparse  whether tokens from config.first_position on attend to what their queries select, or all to all before
    """
    ids = ids_T.to(decoder.device)
    if decoder.device.type != "cpu":
        decoder.rotary.grow(max(lengths))
    positions = torch.cat([torch.arange(n, device=ids.device) for n in lengths])
    turn, x = decoder.rotation(positions[None]), decoder.embed(ids[None])
    selection = Selection(
        decoder=decoder, spec=config.spec, first=config.first_position, chunk_bytes=config.chunk_mib * 2**20
    )
    for layer in range(decoder.shape.layers):
        x = _kept(_layer, decoder, layer, x, turn, tuple(lengths), selection if sparse else None)
    follows = positions > 0
    known, targets = x[0, :-1][follows[1:]], ids[1:][follows[1:]]
    parts = [
        _kept(_losses, decoder, known[at : at + _LOGITS], targets[at : at + _LOGITS])
        for at in range(0, len(targets), _LOGITS)
    ]
    return torch.cat(parts)


def _kept(function: object, *given: object) -> torch.Tensor:
    """Run, keeping nothing but what goes in for the way back."""
    made: torch.Tensor = checkpoint(function, *given, use_reentrant=False)
    return made


def _layer(
    decoder: Decoder, layer: int, x: torch.Tensor, turn: Rotation, lengths: tuple[int, ...], selection: Selection | None
) -> torch.Tensor:
    p = decoder.project(layer, x, turn)
    if selection is None:
        attention = attend_dense(p, lengths, decoder.shape.group)
    else:
        attention = selection.attend(layer, p, p.x_norm[0].detach(), lengths, lambda _: LayerLesson.teacher)
    return decoder.mlp(layer, decoder.output(layer, x, attention))


def _losses(decoder: Decoder, x_NE: torch.Tensor, targets_N: torch.Tensor) -> torch.Tensor:
    logits = decoder.head(x_NE)
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(wide, targets_N, reduction="none")


def held_out_losses(decoder: Decoder, windows: Sequence[torch.Tensor], config: TrainConfig) -> dict[str, float]:
    """Mean loss of the second half of each window, nats a token, under "dense" and under "sparse" attention."""
    found = {}
    with torch.no_grad():
        for name, sparse in (("dense", False), ("sparse", True)):
            losses = [token_losses(decoder, w, (len(w),), config, sparse=sparse)[len(w) // 2 :] for w in windows]
            found[name] = float(torch.cat(losses).mean())
    return found
