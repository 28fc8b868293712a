"""Where GPU code is tested: on a GPU if there is one, else by Triton's interpreter on the CPU.

Import this module before anything that imports Triton: it decides that for the whole process.
"""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
#: Dtypes to test in. The interpreter's bfloat16 arithmetic is wrong.
DTYPES = (torch.float32, torch.float16, torch.bfloat16) if DEVICE.type == "cuda" else (torch.float32, torch.float16)
