"""What `two_gpus` measures in each process, and what the simulator says of it."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable

import attrs
import numpy as np
import torch

from sparda_core.bench.gpu_calibration.copies import both_ways, one_way
from sparda_core.bench.gpu_calibration.machine import HostCopies
from sparda_core.bench.gpu_calibration.pool import KIB, Pool, check, host_memory
from sparda_core.bench.gpu_clock import between, finish, graph_of
from sparda_core.facts import StepFacts
from sparda_core.plan import Kind, Lane, Op, Phase, StepPlan
from sparda_core.runtimes.gpu.alias import as_words
from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.run import run_step
from sparda_core.work import Work

BLOCK_KIB = 32
#: Copies of one graph, each with a list of its own.
CHAIN = 4
#: Does it once: (bytes, seconds). Of copies both ways: the bytes each way.
Once = Callable[[], tuple[int, float]]


@attrs.frozen(kw_only=True)
class Case:
    """One kind of traffic.

    way      "up", "down", "both": the copy engine; "uva": the gather kernel; "host gather": threads gather a list into
             pinned memory, as engine cpu-gather does before its copy; "host copies": threads copy within host memory
    ctas     thread blocks of the gather kernel, with 128 KiB in flight each
    threads  of the host
    """

    way: str
    ctas: int = 0
    threads: int = 0

    def __str__(self) -> str:
        if self.ctas:
            return f"{self.way} {self.ctas} x 128 KiB"
        return f"{self.way}, {self.threads} threads" if self.threads else f"copy engine {self.way}"


CASES = (
    *(Case(way=way) for way in ("up", "down", "both")), *(Case(way="uva", ctas=ctas) for ctas in (2, 8)),
    *(Case(way="host gather", threads=threads) for threads in (4, 16)), Case(way="host copies", threads=16),
)  # fmt: skip
#: What each GPU's process does at once, where they differ.
MIXED = tuple(itertools.product((CASES[0], CASES[3]), (CASES[6], CASES[7])))


@attrs.frozen(kw_only=True)
class Bytes:
    """pool: pinned memory of a process; copy: one copy of the engine; gather: one list; host: a thread's copy."""

    pool: int
    copy: int
    gather: int
    host: int


FULL = Bytes(pool=8 << 30, copy=1 << 30, gather=256 << 20, host=64 << 20)
TINY = Bytes(pool=4 << 20, copy=1 << 18, gather=1 << 19, host=1 << 16)


class Bench:
    """One process: a pinned pool of its own, and every case made ready on the current device."""

    def __init__(self, sizes: Bytes) -> None:
        self._sizes = sizes
        self._pool = Pool(sizes.pool, 2 * sizes.copy)
        check(self._pool)

    def made(self, case: Case) -> Once:
        """What does it once."""
        if case.way == "uva":
            return self._gather(case.ctas)
        if case.way == "host gather":
            return self._host_gather(case.threads)
        if case.way == "host copies":
            copies = HostCopies(case.threads, self._sizes.host)
            return lambda: (copies.nbytes, copies.once())
        nbytes = self._sizes.copy
        up, down = (one_way(self._pool, nbytes, up=way) for way in (True, False))
        timed = {
            "up": functools.partial(between, up), "down": functools.partial(between, down),
            "both": functools.partial(both_ways, up, down),
        }[case.way]  # fmt: skip
        return lambda: (nbytes, timed() / 1e6)

    def _gather(self, ctas: int) -> Once:
        copies = [self._pool.copy(ctas, 128, BLOCK_KIB, self._sizes.gather) for _ in range(CHAIN)]
        graph = graph_of([run for run, _, _ in copies])

        def once() -> tuple[int, float]:
            for _, renew, _ in copies:
                renew()
            finish()
            return CHAIN * copies[0][2], between(graph.replay) / 1e6

        return once

    def _host_gather(self, threads: int) -> Once:
        source = self._pool.cut(BLOCK_KIB)[0]
        rows = as_words(source.view(source.shape[0], -1))
        count = max(4, self._sizes.gather // 4 // (BLOCK_KIB * KIB))
        memory = host_memory(count * BLOCK_KIB * KIB)
        gathered, made = memory.view(rows.dtype).view(count, -1), np.random.default_rng(threads)

        def once() -> tuple[int, float]:
            torch.set_num_threads(threads)
            ids = torch.from_numpy(made.integers(0, rows.shape[0], count))
            began = time.perf_counter()
            torch.index_select(rows, 0, ids, out=gathered)
            took = time.perf_counter() - began
            assert torch.equal(gathered[-1], rows[ids[-1]]), "the host gathered another block than was listed"
            return memory.numel(), took

        return once


def predicted_gb_s(case: Case, profile: GpuProfile, gpus: int) -> float | None:
    """GB/s of each of so many GPUs that do it at once, by the simulator; None of what it has no word for."""
    if case.way == "host copies":
        return None
    settled = attrs.evolve(profile, gpus=gpus)
    if case.way == "host gather":
        return _gathered_gb_s(settled)
    nbytes = 2.0**30
    up = Op(kind=Kind.FETCH, layer=0, lane=Lane.H2D)
    ops = [up] if case.way in ("up", "both", "uva") else []
    if case.way in ("down", "both"):
        ops.append(Op(kind="down", layer=0, lane=Lane.D2H))
    blocks = int(nbytes) // (BLOCK_KIB * KIB) if case.ctas else 1
    works = {
        Kind.FETCH: Work(h2d_bytes=nbytes, pieces=blocks, sms=case.ctas), "down": Work(d2h_bytes=nbytes, pieces=1)
    }  # fmt: skip
    plan = _plan("uva" if case.ctas else "copy-engine", *ops)
    spans, _ = run_step(plan, _nothing(), lambda op, _: works[op.kind], settled, replicas=gpus)
    return max(nbytes / (span.end_ns - span.start_ns) for span in spans)


def _gathered_gb_s(profile: GpuProfile) -> float:
    """From what 2,000 more blocks take the host, before their copy is issued."""
    op = Op(kind=Kind.FETCH, layer=0, lane=Lane.H2D)
    few, many = (
        profile.price(
            op, Work(h2d_bytes=blocks * BLOCK_KIB * KIB, pieces=blocks), plan=_plan("cpu-gather", op), tokens=1
        ).issue_s
        for blocks in (1000, 3000)
    )
    return 2000 * BLOCK_KIB * KIB / (many - few) / 1e9


def _plan(engine: str, *ops: Op) -> StepPlan:
    return StepPlan(
        ops=ops, phase=Phase.DECODE, runtime="copies alone", selector="copies alone", lead=0, resident_layers=0,
        engine=engine,
    )  # fmt: skip


def _nothing() -> StepFacts:
    none = np.zeros((1, 1, 1), np.int64)
    return StepFacts(
        new_tokens=1, budget=1, slots=1, active=np.ones(1), lengths=np.ones(1), selected=none, misses=none,
        opened=none, late=none, wasted=none,
    )  # fmt: skip
