"""Attention of one token to everything before it, on a GPU: block-sparse attention whose list is the whole row."""

from __future__ import annotations

from sparda_core.kernels.attend.gpu import attend_all

__all__ = ["attend_all"]
