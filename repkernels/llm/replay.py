"""A recorded answer made again, here or by a server, and compared."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from repkernels.llm.endpoints import Chat, Completion
from repkernels.llm.engine import Engine
from repkernels.llm.errors import RequestError
from repkernels.llm.fingerprint import Fingerprint
from repkernels.llm.record import differences

__all__ = ["NotComparable", "asked", "differences", "made"]

Record = Mapping[str, Any]
ENDPOINTS = {endpoint.path: endpoint for endpoint in (Chat, Completion)}


class NotComparable(Exception):
    """The record was made by other rules, or with other weights, or cannot be made here."""


def made(recorded: Record, engine: Engine) -> Record:
    """The record of the same request, answered by an engine that is not started yet. Raises NotComparable."""
    _check(engine.fingerprint, recorded)
    if recorded["endpoint"] not in ENDPOINTS:
        raise NotComparable(f"endpoint: expected one of {', '.join(ENDPOINTS)}, got {recorded['endpoint']}")
    endpoint = ENDPOINTS[recorded["endpoint"]](engine)
    engine.start()
    try:
        request = endpoint.read(_body(recorded, engine.name))
        found: Record = asyncio.run(endpoint.respond(request))["repkernels"]
    except RequestError as error:
        raise NotComparable(f"the request is refused here: {error}") from None
    finally:
        engine.stop()
    return found


def asked(recorded: Record, server: str, model: str = "") -> Record:
    """The record of the same request, answered by a server. Raises NotComparable."""
    base = server.rstrip("/").removesuffix("/v1")
    body = json.dumps(_body(recorded, model or recorded["model"])).encode()
    request = urllib.request.Request(base + recorded["endpoint"], body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as response:
            answer = json.load(response)
    except urllib.error.HTTPError as error:
        raise NotComparable(f"{server}: {error.code}: {error.read().decode(errors='replace')}") from None
    except (OSError, ValueError) as error:
        raise NotComparable(f"{server}: {error}") from None
    found = answer.get("repkernels")
    if found is None:
        raise NotComparable(f"{server}: its answers carry no digests; is it a `repkernels serve`?")
    _check(Fingerprint(**found["fingerprint"]), recorded)
    return dict(found)


def _body(recorded: Record, model: str) -> dict[str, Any]:
    return {**recorded["request"], "model": model, "repkernels": {"digest": True}}


def _check(mine: Fingerprint, recorded: Record) -> None:
    lines = mine.differences(Fingerprint(**recorded["fingerprint"]))
    if lines:
        raise NotComparable("not comparable: " + "; ".join(lines))
