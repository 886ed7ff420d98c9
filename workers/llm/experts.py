"""The experts that a call's tokens were routed to, as servers send them: checked, and cut to the rows that were asked for.

Of P prompt and C output tokens a server has rows 0 to P + C - 2: the last token was never sent through the model. Asked for the rows from
some token on it sends those; an older one, which does not know the question, sends all.

vLLM sends a `.npy` in base64, of 8, 16 or 32 bits; of such a file the header is read and nothing is unpickled. SGLang sends 32 bit numbers
in base64 without a shape, which is why a request says what the model has.

Legend for array shapes: N rows, L layers, K experts a token and layer.
"""

from __future__ import annotations

import binascii
import io
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.blobs import ExpertRows, expert_rows
from pipeline.engines.errors import InvalidResponse, Unsupported
from pipeline.messages import RoutedExperts
from workers.llm.backend import GenRequest
from workers.llm.wire import Answer

CHECK = "routed_experts"
NOT_IMPLEMENTED = 501
MAX_HEADER_BYTES = 4096
"""Of a `.npy` file; numpy writes 128."""


def from_npy(raw: object, request: GenRequest, answer: Answer, server: str) -> ExpertRows | None:
    """What vLLM's `routed_experts` says; None where nobody asked, nothing was sampled, or the call was aborted: engines may say nothing
    then, and the call that goes on is asked for those rows, too.

    Raises:
        InvalidResponse: it is not what was asked for.
        Unsupported: the server does not say.
    """
    content = _content(raw, request, answer, server)
    if request.experts is None or content is None:
        return None
    try:
        found = _array_in(content)
    except (ValueError, TypeError, EOFError, SyntaxError, OverflowError) as error:
        raise InvalidResponse(CHECK, f"no array can be read: {error}") from error
    return _checked(found, request.experts, request, answer)


def _array_in(npy: bytes) -> NDArray[Any]:
    """The array of a `.npy` file, over its own bytes."""
    header = io.BytesIO(npy[:MAX_HEADER_BYTES])
    version = np.lib.format.read_magic(header)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = read(header)
    if is_fortran or dtype.hasobject:
        raise ValueError(f"expected numbers row by row, got {dtype}{' column by column' if is_fortran else ''}")
    return np.frombuffer(npy, dtype, offset=header.tell()).reshape(shape)


def from_int32(raw: object, request: GenRequest, answer: Answer, server: str) -> ExpertRows | None:
    """What SGLang's `routed_experts` says; as `from_npy`."""
    content = _content(raw, request, answer, server)
    if request.experts is None or content is None:
        return None
    row = (request.experts.layers, request.experts.top_k)
    if len(content) % (4 * math.prod(row)):
        raise InvalidResponse(CHECK, f"{len(content):,} bytes are no rows of {row[0]} layers and {row[1]} experts, 4 bytes each")
    return _checked(np.frombuffer(content, "<i4").reshape(-1, *row), request.experts, request, answer)


def _content(raw: object, request: GenRequest, answer: Answer, server: str) -> bytes | None:
    if request.experts is None or not answer.output_ids or (raw is None and answer.finish == "abort"):
        return None
    if raw is None:
        remedy = "start it with --enable-return-routed-experts, or ask for none"
        raise Unsupported(server, "say which experts its tokens were routed to", remedy, status=NOT_IMPLEMENTED)
    if not isinstance(raw, str):
        raise InvalidResponse(CHECK, f"expected base64, got {type(raw).__name__}")
    try:
        return binascii.a2b_base64(raw, strict_mode=True)
    except ValueError as error:
        raise InvalidResponse(CHECK, f"no base64: {error}") from error


def _checked(found: NDArray[Any], wanted: RoutedExperts, request: GenRequest, answer: Answer) -> ExpertRows:
    start = request.experts_from
    rows = len(request.prompt_ids) + len(answer.output_ids) - 1
    if found.dtype.kind not in "iu" or found.ndim != 3 or found.shape[1:] != (wanted.layers, wanted.top_k):
        raise InvalidResponse(
            CHECK, f"expected whole numbers [N, {wanted.layers}, {wanted.top_k}], got {found.dtype} {list(found.shape)}: see routed_experts"
        )
    if len(found) == rows:
        found = found[start:]
    if len(found) != rows - start:
        raise InvalidResponse(CHECK, f"expected rows {start} to {rows - 1}, one less than tokens, got {len(found)} rows")
    if found.size and ((found.dtype.kind == "i" and found.min() < 0) or found.max() >= wanted.experts):
        raise InvalidResponse(CHECK, f"expected experts from 0 to {wanted.experts - 1}, got {found.min()} to {found.max()}")
    return expert_rows(found, wanted.experts)


__all__ = ["from_int32", "from_npy"]
