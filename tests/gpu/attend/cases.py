"""Rows, lists and poisoned memory for the tests of decode attention."""

from __future__ import annotations

import attrs
import torch

from sparda_core.kernels.attend.bias import ListedBias
from sparda_core.kernels.attend.reference import attend_blocks
from sparda_core.shapes import BlockSpec
from tests.gpu_env import DEVICE

NAN = float("nan")
#: Relative error by norm. Inputs are rounded to the dtype first, so what is left is the kernel's own.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double().cpu() - want.double()).norm() / want.double().norm().clamp_min(1e-12))


@attrs.frozen(kw_only=True, eq=False)
class Rows:
    """Rows of a batch whose blocks are scattered over an array; everything that they do not see is NaN.

    logical    per (row, head), logical blocks selected, ascending, the current one last
    places     per (row, head), index into `array` of every logical block of the row
    """

    spec: BlockSpec
    positions: list[int]
    q: torch.Tensor  # [B, Hq, D], float64, representable in the dtype
    array: torch.Tensor  # [n, 2, block, D], likewise
    logical: list[list[list[int]]]
    places: list[list[list[int]]]
    dtype: torch.dtype
    bias: torch.Tensor | None = None  # [B, Hk, N], float32, NaN beyond each row's tokens

    def biased(self, seed: int) -> Rows:
        """The same rows with a bias on every token."""
        most = max(*self.positions, 0) + 1
        bias = 3 * torch.randn(len(self.positions), self.heads, most, generator=generator(seed))
        for row, position in enumerate(self.positions):
            bias[row, :, position + 1 :] = NAN
        return attrs.evolve(self, bias=bias)

    @property
    def heads(self) -> int:
        return len(self.logical[0])

    def expected(self, *, everything: bool = False) -> torch.Tensor:
        """float64 [B, Hq, D], by the reference."""
        batch, width = len(self.positions), max(position // self.spec.block + 1 for position in (*self.positions, 0))
        physical = torch.full((batch, self.heads, 1, width), -1, dtype=torch.int64)
        tokens = torch.zeros(physical.shape, dtype=torch.int32)
        for row, position in enumerate(self.positions):
            for head in range(self.heads):
                chosen = range(position // self.spec.block + 1) if everything else self.logical[row][head]
                for w, block in enumerate(chosen if position >= 0 else ()):
                    physical[row, head, 0, w] = self.places[row][head][block]
                    tokens[row, head, 0, w] = min(self.spec.block, position + 1 - block * self.spec.block)
        bias = None
        if self.bias is not None:
            lists = self.table(width, as_places=False)[0].cpu()
            every = torch.arange(width, dtype=torch.int32).expand(lists.shape) if everything else lists
            bias = ListedBias(values=self.bias, rows=torch.arange(batch), blocks=every[:, :, None])
        return attend_blocks(self.q[:, :, None], self.array, physical, tokens, bias)[:, :, 0]

    def table(self, width: int, *, as_places: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """(int32 [B, Hk, width] lists, int32 [B, Hk] counts) on the device; inactive rows hold rubbish."""
        lists = torch.full((len(self.positions), self.heads, width), -1, dtype=torch.int32)
        counts = torch.full((len(self.positions), self.heads), 7, dtype=torch.int32)
        for row, position in enumerate(self.positions):
            for head in range(self.heads):
                chosen = self.logical[row][head]
                named = [self.places[row][head][block] for block in chosen] if as_places else chosen
                if position >= 0:
                    lists[row, head, : len(named)] = torch.tensor(named, dtype=torch.int32)
                    counts[row, head] = len(named)
        return lists.to(DEVICE), counts.to(DEVICE)

    def position(self) -> torch.Tensor:
        return torch.tensor(self.positions, dtype=torch.int32, device=DEVICE)


def make_rows(
    seed: int, positions: list[int], *, spec: BlockSpec, heads: int, group: int, width: int, dtype: torch.dtype,
    page_blocks: int = 1,
) -> Rows:  # fmt: skip
    """Random rows. Blocks of one page of a row lie side by side in the array, pages in any order."""
    stream = generator(seed)
    pages = [max(0, -(-(position // spec.block + 1) // page_blocks)) for position in positions]
    order = torch.randperm(sum(pages) * heads + 2, generator=stream).tolist()
    array = torch.full(((len(order)) * page_blocks, 2, spec.block, width), NAN, dtype=torch.float64)
    logical: list[list[list[int]]] = []
    places: list[list[list[int]]] = []
    for position, count in zip(positions, pages, strict=True):
        logical.append([_choose(position, spec, stream) for _ in range(heads)])
        places.append([])
        for _ in range(heads):
            mine = [order.pop() for _ in range(count)]
            places[-1].append([page * page_blocks + at for page in mine for at in range(page_blocks)])
            for token in range(position + 1):
                block = places[-1][-1][token // spec.block]
                array[block, :, token % spec.block] = torch.randn(2, width, generator=stream, dtype=torch.float64)
    q = torch.randn(len(positions), heads * group, width, generator=stream, dtype=torch.float64)
    return Rows(
        spec=spec, positions=positions, q=q.to(dtype).double(), array=array.to(dtype).double(), logical=logical,
        places=places, dtype=dtype,
    )  # fmt: skip


def _choose(position: int, spec: BlockSpec, stream: torch.Generator) -> list[int]:
    """A lawful selection: forced blocks, then others at random."""
    if position < 0:
        return []
    forced = spec.forced_blocks(position)
    free = [b for b in range(position // spec.block + 1) if b not in forced]
    taken = torch.randperm(len(free), generator=stream).tolist()[: spec.budget - len(forced)]
    return sorted([*forced, *(free[i] for i in taken)])


def widened(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The same values on the device as a view whose leading strides are larger than its shape's."""
    shape = [size + 1 for size in tensor.shape[:-1]] + [tensor.shape[-1] + 4]
    around = torch.full(shape, NAN, dtype=dtype, device=DEVICE)
    view = around[tuple(slice(0, size) for size in tensor.shape)]
    view.copy_(tensor.to(dtype))
    return view
