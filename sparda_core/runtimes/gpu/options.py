"""Options of a GPU session. Torch-free."""

from __future__ import annotations

from typing import Any

import attrs

from sparda_core.errors import ConfigError, UnknownNameError
from sparda_core.footprint import PAGE_BLOCKS
from sparda_core.kernels.gather.runs import check_ctas, check_in_flight
from sparda_core.runtimes.gpu.sampling_bounds import check_sampling
from sparda_core.runtimes.keywords import from_keywords
from sparda_core.shapes import check_integer

#: Thread blocks and bytes in flight of the copy kernel, by rule; see `GpuOptions.copy_rule`.
COPY_RULES = ("ours", "paper")
HOST_DTYPES = ("same", "fp8")
COPY_LAUNCHES = ("layer", "step")
#: Ways to pin host memory, see runtimes/gpu/pinning.py.
PINNINGS = ("cuda-host-alloc", "register-4k", "register-huge", "plain")


def _at_least(least: int) -> Any:
    def check(_: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value is not None or attribute.default is not None:
            check_integer(attribute.name, value, least)

    return check


def _bytes(_: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ConfigError(f"{attribute.name}={value!r} must be an integer >= 1, a number of bytes")


def _one_of(*known: str) -> Any:
    def check(_: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value not in known:
            raise ConfigError(f"{attribute.name}={value!r} is unknown; known: {', '.join(known)}")

    return check


def _pinning(_instance: object, _attribute: object, value: Any) -> None:
    if value is not None and value not in PINNINGS:
        raise UnknownNameError(what="pinning", name=str(value), known=PINNINGS)


@attrs.frozen(kw_only=True)
class CopySize:
    """Size of the copy kernel: thread blocks, and the bytes that each keeps in flight; `source` is what it rests on."""

    ctas: int
    in_flight_bytes: int
    source: str = attrs.field(default="", eq=False)


#: What the H200's profile says (simulator/copy_default.py; a test holds the two together), for sessions that are opened
#: without a combination, which reads the profile of the GPU at hand.
MEASURED = CopySize(ctas=2, in_flight_bytes=128 << 10, source="measured on an H200")
#: SparDA's release: 16 thread blocks with 16 KiB each, 32 of them from this batch on.
_PAPER_LARGE = 32
PAPER = tuple(CopySize(ctas=ctas, in_flight_bytes=16 << 10, source="SparDA's release") for ctas in (16, 32))


def _one_of_these(*known: int | None) -> Any:
    def check(_instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if not any(value is one or (type(value) is type(one) and value == one) for one in known):
            raise ConfigError(f"{attribute.name}={value!r} must be one of {', '.join(map(str, known))}")

    return check


@attrs.frozen(kw_only=True)
class GpuOptions:
    """How a GPU session runs; none of it changes what it answers, except `host_dtype` and sampling.

    places                rows that it can hold at once; memory is taken for all of them when it opens
    tokens                most tokens of a row; None: the model's context
    page_blocks           blocks per page of the stores
    host_limit_bytes      most bytes of the pinned host store; None: what the rows can need
    gpu_memory_bytes      device memory that it may use, weights included: slots become as many as fit; None: the
                          runtime's own slots
    pinning               how host memory is pinned; None: the way that was fastest where it was measured
    host_memory           uint8, pinned memory to keep the host store in, the caller's; None: the session pins its own
    host_dtype            "same", or "fp8": e4m3 with a scale per block and KV head, half the bytes of bf16
    copy_rule             "ours": `copy_default`; "paper": 16 thread blocks below batch 32, else 32, of 16 KiB
    copy_default          the size that rule "ours" stands for; a combination sets it from the GPU's measured profile
    copy_ctas, copy_in_flight_bytes     override the rule
    copy_launch           of engine "uva" in captured steps. "layer": a launch for each layer's list; "step": one that
                          stays for the whole step and moves each list as soon as it is known. Steps that the host
                          issues one operation at a time launch by layer, whatever this says
    graph                 capture a step once and replay it; None: where the device can
    early                 how early a step's small kernels start, 0, 1 or 2 (kernels/early.py); None: as early as the
                          device can
    timeline              record when each operation of a decode step ran; such steps are issued one by one
    temperature, top_p, seed            sampling of new rows, see `GpuSession.set_sampling`; 0 is greedy
    keep_queries          prompt queries kept per row and layer, for snapshots that another selector calibrates on;
                          `infinigen` asks for the whole prompt's (Hq D values a token and layer)
    """

    places: int = attrs.field(default=1, validator=_at_least(1))
    tokens: int | None = attrs.field(default=None, validator=_at_least(1))
    page_blocks: int = attrs.field(default=PAGE_BLOCKS, validator=_at_least(1))
    host_limit_bytes: int | None = attrs.field(default=None, validator=_bytes)
    gpu_memory_bytes: int | None = attrs.field(default=None, validator=_bytes)
    pinning: str | None = attrs.field(default=None, validator=_pinning)
    host_memory: Any = None
    host_dtype: str = attrs.field(default="same", validator=_one_of(*HOST_DTYPES))
    copy_rule: str = attrs.field(default="ours", validator=_one_of(*COPY_RULES))
    copy_default: CopySize = attrs.field(default=MEASURED, validator=attrs.validators.instance_of(CopySize))
    copy_ctas: int | None = attrs.field(default=None, validator=_at_least(1))
    copy_in_flight_bytes: int | None = attrs.field(default=None, validator=_at_least(1))
    copy_launch: str = attrs.field(default="layer", validator=_one_of(*COPY_LAUNCHES))
    graph: bool | None = attrs.field(default=None, validator=_one_of_these(None, False, True))
    early: int | None = attrs.field(default=None, validator=_one_of_these(None, 0, 1, 2))
    timeline: bool = attrs.field(default=False, validator=_one_of_these(False, True))
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    keep_queries: int = attrs.field(default=0, validator=_at_least(0))

    def __attrs_post_init__(self) -> None:
        check_sampling(self.temperature, self.top_p, self.seed)
        size = self.copy_size(self.places)
        check_ctas(size.ctas)
        check_in_flight(size.in_flight_bytes)

    @classmethod
    def of(cls, **options: Any) -> GpuOptions:
        """Build from keywords; raises ConfigError for an unknown one."""
        return from_keywords(cls, "GPU", options)

    def copy_size(self, batch: int) -> CopySize:
        """The copy kernel's size for a step of `batch` places."""
        by_rule = PAPER[batch >= _PAPER_LARGE] if self.copy_rule == "paper" else self.copy_default
        by_hand = self.copy_ctas is not None or self.copy_in_flight_bytes is not None
        return CopySize(
            ctas=self.copy_ctas or by_rule.ctas,
            in_flight_bytes=self.copy_in_flight_bytes or by_rule.in_flight_bytes,
            source="as asked for" if by_hand else by_rule.source,
        )
