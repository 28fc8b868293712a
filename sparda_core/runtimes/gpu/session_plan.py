"""What a GPU session would take, from shape and options alone: what it works out itself first. Torch-free."""

from __future__ import annotations

from sparda_core.errors import ConfigError
from sparda_core.runtime import Runtime
from sparda_core.runtimes.gpu.capacity import CapacityPlan, plan_capacity
from sparda_core.runtimes.gpu.options import GpuOptions
from sparda_core.selector import DeviceSizes, Selector
from sparda_core.shapes import BlockSpec, ModelShape


def session_plan(
    *, shape: ModelShape, spec: BlockSpec, selector: Selector, runtime: Runtime, options: GpuOptions, value_bytes: int,
    forecast: bool, check: bool = True,
) -> CapacityPlan:  # fmt: skip
    """The capacity plan of a session under these options.

    value_bytes  per weight, key and value on the device
    forecast     whether the model's steps make Forecasts
    check        raise CapacityError where it does not fit; otherwise the plan is told all the same, with as many slots
                 as the budget where memory has no room for more
    Raises ConfigError where a selector attends to more blocks than an offloaded layer has slots for.
    """
    tokens = shape.context if options.tokens is None else options.tokens
    check_every_block(selector, runtime, spec, tokens)
    slots: int | None = runtime.slot_count(spec) if runtime.offloads else 0
    if runtime.offloads and runtime.slots is None and options.gpu_memory_bytes is not None:
        slots = None
    return plan_capacity(
        shape=shape, spec=spec, places=options.places, tokens=tokens, slots=slots,
        resident_layers=runtime.resident_count(selector, shape), kv_bytes=value_bytes,
        host_kv_bytes=1 if options.host_dtype == "fp8" else value_bytes, weight_bytes=value_bytes, forecast=forecast,
        page_blocks=options.page_blocks, host_limit_bytes=options.host_limit_bytes,
        gpu_memory_bytes=options.gpu_memory_bytes, check=check,
        selector_bytes=selector.device_bytes(DeviceSizes(
            shape=shape, spec=spec, places=options.places, tokens=tokens, value_bytes=value_bytes,
            lead=runtime.lead(selector),
        )),
    )  # fmt: skip


def check_every_block(selector: Selector, runtime: Runtime, spec: BlockSpec, tokens: int) -> None:
    """Raise ConfigError where `selector` attends to more blocks of a row of `tokens` tokens than the budget has."""
    check_slots_for(selector.cut(spec, tokens).budget, selector, runtime, spec, tokens)


def check_slots_for(need: int, selector: Selector, runtime: Runtime, spec: BlockSpec, tokens: int) -> None:
    """Raise ConfigError where `need` blocks, attended at once, exceed the budget of an offloading runtime."""
    if runtime.offloads and spec.budget < need:
        raise ConfigError(
            f"budget={spec.budget} must be >= {need} for selector {selector.name!r} with rows of {tokens} tokens: it "
            "attends to every block, and each needs a slot; raise budget (and slots), lower tokens, or choose runtime "
            "'resident'"
        )
