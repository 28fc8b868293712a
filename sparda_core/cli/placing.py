"""A model onto the device of --device; on a GPU, the plan of the session's memory is told before anything is taken."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

import attrs

from sparda_core.cli.gpu_options import check_cpu, check_gpu, check_names, gpu_options
from sparda_core.cli.running import combine, method
from sparda_core.cli.screen import console

if TYPE_CHECKING:
    from sparda_core.compose import Combination
    from sparda_core.models.load import ReadModel
    from sparda_core.models.model import Model
    from sparda_core.runtimes.gpu.capacity import CapacityPlan


def read(args: argparse.Namespace) -> ReadModel:
    """The model of --model, --forecast and --dtype, in host memory; raises ConfigError for a --device not there."""
    import torch

    from sparda_core.models.load import check_device, read_model

    if args.device != "cpu":
        check_names(args)  # what is wrong on every machine comes first
    check_device(args.device)
    (check_cpu if args.device == "cpu" else check_gpu)(args)
    with console(sys.stderr).status(f"loading {args.model}"):
        return read_model(args.model, forecast=args.forecast, dtype=getattr(torch, args.dtype or "float32"))


def place(
    args: argparse.Namespace, model: ReadModel, *, tokens: int, **cpu_options: Any
) -> tuple[Model, Combination, CapacityPlan | None]:
    """The model on its device, the combination that opens a session for a row of `tokens` tokens, and its memory.

    On a GPU the plan is told on standard error first, or refused with CapacityError: numbers, and what would fit.
    On a CPU memory grows, and there is none.
    """
    if args.device == "cpu":
        here = model.on("cpu")
        return here, combine(args, here, **cpu_options), None
    from sparda_core.compose import compose

    options = {"tokens": tokens, **gpu_options(args)}
    asked = compose(model, args.selector, args.runtime, **method(args, model.config), **options)
    plan = asked.capacity()
    sys.stderr.write(f"{plan.as_line()}\n")
    there = model.on(args.device)
    pair = combine(args, there, **cpu_options)
    return there, attrs.evolve(pair, session_options=options), plan
