"""Samples that a machine of known numbers would give, for tests of the fit."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from sparda_core.simulator.gpu import GpuProfile
from sparda_core.simulator.gpu_fit.beside import LAYERS, PRODUCTS, Copy, products_s
from sparda_core.simulator.gpu_fit.contention import predicted
from sparda_core.simulator.gpu_fit.forked import played
from sparda_core.simulator.gpu_fit.host_steps import layer_s as host_layer_s
from sparda_core.simulator.gpu_fit.kernels import LAYER, OWN
from sparda_core.simulator.gpu_fit.samples import Row, Samples
from sparda_core.simulator.gpu_price import kind_alone_s
from sparda_core.work import Work

KIB = 1024
TOKENS = (16, 64, 256)
def _product(inputs: int, outputs: int, rows: int) -> Work:
    return Work(flops=2.0 * rows * inputs * outputs, hbm_bytes=2.0 * inputs * outputs)


def work_of(kernel: str, rows: int) -> Work:
    """What a kernel asks for."""
    products = {"qkv": (4096, 4864), "output": (4096, 4096), "gate up": (4096, 32768), "down": (16384, 4096)}
    if kernel in (*products, "head"):
        return _product(*products.get(kernel, (4096, 73448)), rows)
    return {
        "score forecast": Work(hbm_bytes=4.2e6 * rows, ctas=256, ctas_per_sm=8),
        "choose": Work(hbm_bytes=1.6e4, ctas=2), "diff last-selection": Work(hbm_bytes=9e3, ctas=2),
        "attend": Work(hbm_bytes=6.3e6 * rows, ctas=192, ctas_per_sm=4, launches=2),
    }.get(kernel, Work(hbm_bytes=100.0, ctas=132))  # fmt: skip


KINDS = {"score forecast": "score", "choose": "select", "diff last-selection": "diff", "attend": "attend"}


class Machine:
    """What a profile's numbers would have been measured as, each sample off by a share drawn from a normal law."""

    def __init__(self, profile: GpuProfile, noise: float = 0.0) -> None:
        self.profile, self._noise, self._made = profile, noise, np.random.default_rng(7)

    def seen(self, value: float, count: int = 7) -> list[float]:
        """So many samples of one number."""
        return [value * float(1 + self._noise * x) for x in self._made.standard_normal(count)]

    def samples(self) -> Samples:
        """All sections."""
        profile = self.profile
        identity = dict.fromkeys(("driver", "cuda", "torch", "triton"), "1") | {"name": "Made Up 1", "sms": profile.sms}
        sections = {
            "machine": [self._machine()], "launches": self._launches(), "copy-engine": self._engine(),
            "gather": self._gather(), "grids": self._grids(), "products": self._products(),
            "beside products": self._beside(), "kernels": self._kernels(), "sequence": self._sequence(),
            "elasticity": [],
            "host lists": self._lists(), "forked": self._forked(),
        }  # fmt: skip
        return Samples(
            identity=identity, provenance={"date": "2026-11-30T10:00:00+00:00", "command": "sparda calibrate"},
            sections=sections, seconds=dict.fromkeys(sections, 1.0),
        )  # fmt: skip

    def _machine(self) -> Row:
        p = self.profile
        return {
            "sms": p.sms, "memory_mib": p.memory.hbm_bytes.value / 2**20, "host_mib": p.memory.host_bytes.value / 2**20,
            "pcie_generation": 5, "pcie_lanes": 16,
            "device_copy_bytes_per_s": self.seen(p.memory.hbm_bytes_per_s.value),
            "host_copy_bytes_per_s": self.seen(p.memory.host_bytes_per_s.value),
            "product_flop_per_s": self.seen(p.compute.flop_per_s.value),
        }  # fmt: skip

    def _launches(self) -> list[Row]:
        launch = self.profile.launch
        us = {
            "graph": launch.graph_s.value, "eager": launch.eager_s.value, "graph to graph": launch.step_s.value,
        }  # fmt: skip
        return [{"what": what, "us": self.seen(1e6 * value)} for what, value in us.items()]

    def _lists(self) -> list[Row]:
        """Steps whose layers take little but for their copies: noise of what is subtracted would add up."""
        p, layer_s = self.profile, 2e-5
        assert p.cpu_gather is not None
        assert p.copy_engine is not None
        submit_s = p.copy_engine.submit_s.value if p.copy_engine.submit_s else 0.0
        start_s = (p.copy_engine.start_s or p.launch.eager_s).value
        segment_s = (p.launch.segment_s or p.launch.step_s).value
        seen: list[tuple[str, int, float]] = [("whole", 0, layer_s)]
        for engine, blocks in itertools.product(("copy-engine", "cpu-gather"), (0, 16, 150, 600)):
            size = blocks * 32768.0
            gather_s = p.cpu_gather.call_s.value + size / p.cpu_gather.gather_bytes_per_s.value
            move_s = gather_s if engine == "cpu-gather" else start_s + blocks * submit_s
            for how in ("sync", "prefetch"):
                seen += [(f"{engine}, {how}, move", blocks, move_s), (f"{engine}, {how}, rest", blocks, segment_s)]
                seen.append((f"{engine}, {how}, list", blocks, 0.0))  # layers so short that the host is behind
                whole_s = host_layer_s(p, engine, blocks, size, layer_s, early=how == "prefetch")
                seen.append((f"{engine}, {how}", blocks, whole_s))
        return [
            {"what": what, "blocks": blocks, "bytes": blocks * 32768, "us": self.seen(1e6 * seconds)}
            for what, blocks, seconds in seen
        ]

    def _engine(self) -> list[Row]:
        p = self.profile
        assert p.copy_engine is not None
        call_s, up = p.copy_engine.call_s.value, p.link.h2d_bytes_per_s.value
        rates = {"h2d": up, "d2h": p.link.d2h_bytes_per_s.value, "both": p.link.both_ways_bytes_per_s.value}
        rows: list[Row] = [
            {"way": way, "bytes": size, "pieces": 1, "us": self.seen(1e6 * (size / rate + call_s * (size < 2**28)))}
            for way, rate in rates.items()
            for size in (2**20, 2**22, 2**24, 2**30)
        ]
        for piece in (16384, 32768, 65536):
            rate = p.copy_engine.bytes_per_s(piece, up)
            us = self.seen(2048 * piece / rate * 1e6)
            rows.append({"way": "h2d", "bytes": 2048 * piece, "pieces": 2048, "us": us})
        return rows

    def _gather(self) -> list[Row]:
        law = self.profile.uva
        assert law is not None
        return [
            {
                "ctas": ctas, "in_flight_kib": kib, "block_kib": 16, "repeated": repeated,
                "gb_s": self.seen(law.bytes_per_s(ctas, in_flight=kib * KIB, repeated=repeated) / 1e9, 1)[0],
            }
            for ctas, kib, repeated in itertools.product((1, 2, 4, 8), (16, 128), (False, True))
        ]  # fmt: skip

    def _grids(self) -> list[Row]:
        compute = self.profile.compute
        cluster = int(compute.product_cluster.value)
        grid = [cluster, int(compute.product_ctas.value) // cluster, 1]
        name = f"nvjet_tst_128x16_64x11_{cluster}x1_v_bz_TNT"
        return [{"rows": 16, "name": name, "grid": grid, "us": 30.0}, {"rows": 16, "name": "r", "grid": [9], "us": 1.0}]

    def _products(self) -> list[Row]:
        return [
            {"rows": rows, "us_per_layer": self.seen(1e6 * products_s(rows, self.profile)[0] / LAYERS)}
            for rows in (1, 16, 64, 256)
        ]

    def _beside(self) -> list[Row]:
        copies: list[tuple[str, int, int, bool]] = [("engine", 0, 0, False)]
        copies += [("gather", ctas, 128, False) for ctas in (1, 2, 3, 8)]
        copies += [("gather", ctas, 16, False) for ctas in (4, 16)]
        copies += [("gather", ctas, kib, True) for ctas, kib in ((1, 128), (2, 128), (3, 128), (8, 16))]
        return [self._beside_row(rows, *copy) for rows in TOKENS for copy in copies]

    def _beside_row(self, rows: int, co: str, ctas: int, kib: int, first: bool) -> Row:  # noqa: FBT001
        row: dict[str, Any] = {
            "rows": rows, "co": co, "ctas": ctas, "in_flight_kib": kib, "block_kib": 32 if ctas else 0, "first": first,
        }  # fmt: skip
        slow, rate = predicted(row, self.profile)
        law = self.profile.uva
        assert law is not None
        if ctas:
            rate = law.bytes_per_s(ctas, in_flight=kib * KIB, beside=True, late=not first, tokens=rows) / 1e9
        return {
            **row, "slowdown": 1 + (slow - 1) * self.seen(1.0, 1)[0], "gb_s": self.seen(rate, 1)[0],
            "alone_us_per_layer": self.seen(1e6 * products_s(rows, self.profile)[0] / LAYERS, 1)[0],
        }  # fmt: skip

    def _us(self, kernel: str, rows: int) -> float:
        return 1e6 * kind_alone_s(self.profile, work_of(kernel, rows), KINDS.get(kernel, "none"), rows)

    def _kernels(self) -> list[Row]:
        return [
            {
                "kernel": name, "kind": KINDS.get(name, "product"), "rows": rows,
                "work": attrs.asdict(work_of(name, rows)), "us": self.seen(self._us(name, rows)),
            }
            for name in sorted({name for names in OWN.values() for name in names})
            for rows in (1, 16, 64)
        ]  # fmt: skip

    def _sequence(self) -> list[Row]:
        return [
            {"rows": rows, "launches": 8, "us_per_layer": self.seen(sum(self._us(name, rows) for name in LAYER))}
            for rows in (1, 16, 64)
        ]

    def _forked(self) -> list[Row]:
        """Nothing, attention of one, two and three thread blocks an SM, and a layer's products, beside copies."""
        attention = {blocks: Work(hbm_bytes=1e8, ctas=132 * blocks, ctas_per_sm=3) for blocks in (1, 2, 3)}
        return [
            self._forked_row("nothing", 0, "", []),
            *(self._forked_row("attend", 16, "attend", [work] * 6) for work in attention.values()),
            self._forked_row("layer", 16, "attend", [attention[2]] * 6),
            *(self._forked_row("products", rows, "product", [_product(*size, rows) for size in PRODUCTS])
              for rows in TOKENS),
        ]  # fmt: skip

    def _forked_row(self, beside: str, rows: int, kind: str, works: Sequence[Work]) -> Row:
        told = [{"name": kind, "kind": kind, "work": attrs.asdict(work)} for work in works]
        row: Row = {"beside": beside, "rows": rows, "splits": None, "times": 8, "ops": told}
        copies, alone_s = list[Row](), 0.0
        for ctas, kib in itertools.product((1, 2, 4, 8), (128, 16)):
            copy = Copy(ctas=ctas, in_flight=kib * KIB, total=2**24 if kib == 128 else 2**21, late=False)
            met = played(row, copy, self.profile)
            alone_s = met.alone_s
            copies.append({
                "ctas": ctas, "in_flight_kib": kib, "block_kib": 32, "bytes": copy.total,
                "copy_us": self.seen(1e6 * met.copy_s, 12), "compute_us": self.seen(1e6 * met.compute_s, 12),
            })  # fmt: skip
        return {**row, "us": self.seen(1e6 * alone_s, 12), "copies": copies}
