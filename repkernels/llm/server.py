"""transformers' OpenAI-compatible server with this library's answers.

Routes, /v1/models and /health are transformers' (`transformers.cli.serving`); chat completions and completions are
answered by `Engine`. What transformers would serve beside them (responses, transcriptions, loading of models) is gone.
"""

import asyncio
import inspect
import json
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException as StarletteHTTPException
from transformers.cli.serving.server import build_server

from repkernels.llm.endpoints import Chat, Completion, Endpoint
from repkernels.llm.engine import Engine
from repkernels.llm.errors import RequestError

_SERVED = ("/v1/chat/completions", "/v1/completions", "/v1/models", "/health")


def application(engine: Engine) -> FastAPI:
    """The server of an engine that is started; it stops the engine when it ends."""
    handlers = {"chat_handler": Handler(Chat(engine)), "completion_handler": Handler(Completion(engine))}
    names = inspect.signature(build_server).parameters
    others = {name: None for name in names if name.endswith("_handler") and name not in handlers}
    app: FastAPI = build_server(model_manager=OneModel(engine), generation_state=State(engine), **handlers, **others)  # type: ignore[arg-type]
    app.router.routes[:] = [route for route in app.router.routes if getattr(route, "path", None) in _SERVED]
    app.add_exception_handler(RequestError, lambda _, error: refusal(error))
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(StarletteHTTPException, _http)
    return app


class Handler:
    """What transformers' routes call."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint

    async def handle_request(self, body: Any, request_id: str) -> Response:
        """The response, or RequestError for a request that cannot be answered."""
        if not self.endpoint.engine.alive:
            raise RequestError("the model has failed; see the server's log", status=503)
        request = self.endpoint.read(body)
        if not request.stream:
            return Whole(self.endpoint.respond(request))
        chunks = self.endpoint.stream(request)
        # A request that is at fault is to have its status, so one chunk comes before it.
        first = await anext(chunks)
        return StreamingResponse(_events(first, chunks), media_type="text/event-stream")


class Whole(Response):
    """A response that is computed while it is awaited, and no longer than its client waits for it."""

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        super().__init__()
        self.work = work

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        work, gone = asyncio.ensure_future(self.work), asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not work.done():
                work.cancel()
        try:
            response: Response = JSONResponse(await work)
        except RequestError as error:
            response = refusal(error)
        except asyncio.CancelledError:
            response = Response(status_code=499)
        await response(scope, receive, send)


class OneModel:
    """The part of transformers' ModelManager that the routes use."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def list_models(self) -> list[dict[str, Any]]:
        return [{"id": self.engine.name, "object": "model", "created": 0, "owned_by": "repkernels"}]

    get_gen_models = list_models

    def shutdown(self) -> None:
        self.engine.stop()


class State:
    """The part of transformers' GenerationState that the routes use."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def is_cb_alive(self) -> bool:
        return self.engine.alive


def refusal(error: RequestError) -> JSONResponse:
    return JSONResponse(error.as_json(), status_code=error.status)


async def _malformed(_: Request, error: Exception) -> JSONResponse:
    found = error.errors()[0] if isinstance(error, RequestValidationError) else {"msg": str(error)}
    return refusal(RequestError(f"the body: {found['msg']}; expected a JSON object"))


async def _http(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, (HTTPException, StarletteHTTPException))
    return refusal(RequestError(str(error.detail), status=error.status_code))


async def _events(first: Any, chunks: AsyncGenerator[Any]) -> AsyncGenerator[str]:
    """Server-sent events; the requests are cancelled where the client goes away."""
    async with aclosing(chunks):
        try:
            yield _event(first)
            async for chunk in chunks:
                yield _event(chunk)
        except RequestError as error:
            yield _event(error.as_json())
        yield "data: [DONE]\n\n"


def _event(chunk: Any) -> str:
    return f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"


async def _disconnected(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
