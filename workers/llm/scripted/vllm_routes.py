"""vLLM's routes over the scripted engine; which are there depends on version and flags."""

from __future__ import annotations

from typing import get_args

from aiohttp import web

from pipeline.engines.control import PauseMode
from workers.llm.scripted.call import Call, Output
from workers.llm.scripted.faults import Corruption
from workers.llm.scripted.http import BadRequestError, Body, answer_json, read_object, text_in, texts_in
from workers.llm.scripted.images import rendered
from workers.llm.scripted.routes import Handler, Host
from workers.llm.scripted.vllm_bodies import error_body, read_completions, read_generate, write_completions, write_generate
from workers.llm.scripted.vllm_faults import corrupt, dictate_logprobs
from workers.llm.vllm_images import RENDER
from workers.llm.vllm_wire import COMPLETIONS, GENERATE

PAUSE_MODES: dict[str, PauseMode] = {mode: mode for mode in get_args(PauseMode)}


class VllmRoutes:
    """The routes of one server."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.generation: tuple[str, ...] = (GENERATE, COMPLETIONS) if host.options.scale_out else (COMPLETIONS,)

    def add_to(self, app: web.Application) -> None:
        """All but those of generation."""
        add, options = app.router.add_route, self._host.options
        add("GET", "/health", self._health)
        add("GET", "/version", self._version)
        add("GET", "/metrics", self._metrics)
        add("GET", "/load", self._load)
        if options.scale_out:
            add("POST", RENDER, self._render)
        if not options.scale_out:
            add("POST", "/inference/v1/{rest:.*}", self._switched_off)
        elif options.wire != "0.31":
            add("POST", "/inference/v1/abort_requests", self._abort)
        if options.dev_mode:
            posts: dict[str, Handler] = {
                "/abort_requests": self._abort_or_all,
                "/pause": self._pause,
                "/resume": self._resume,
                "/update_weight_version": self._update_weight_version,
                "/reset_prefix_cache": self._reset_prefix_cache,
                "/collective_rpc": self._collective_rpc,
            }
            for path, handler in posts.items():
                add("POST", path, handler)
            add("GET", "/is_paused", self._is_paused)
            add("GET", "/weight_info", self._weight_info)

    def is_guarded(self, path: str) -> bool:
        """The key guards what speaks OpenAI's and our protocol, and nothing else."""
        return path.startswith(("/v1", "/inference"))

    def error(self, message: str, kind: str, status: int, param: str = "") -> Body:
        """An error as vLLM words it."""
        return error_body(message, kind, status, param)

    def detokenized(self, text: str) -> Body:
        """The answer of `/detokenize`."""
        return {"prompt": text}

    def read(self, path: str, body: Body, name: str) -> Call:
        """The call that a request asks for."""
        read = read_generate if path == GENERATE else read_completions
        return read(body, name, self._host.options, self._host.tokenizer)

    def id_in(self, body: Body) -> object:
        """The name that a request gives itself."""
        return body.get("request_id")

    def write(self, path: str, body: Body, call: Call, output: Output) -> Body:
        """The answer."""
        options = self._host.options
        if path == GENERATE:
            answer = write_generate(body, call, output, options)
        else:
            answer = write_completions(body, call, output, options, self._host.tokenizer)
        dictate_logprobs(answer, body)
        return answer

    def corrupt(self, answer: Body, how: Corruption) -> Body | list[Body] | bytes:
        """The answer, bent."""
        return corrupt(answer, how)

    # ---- control

    async def _render(self, request: web.Request) -> web.StreamResponse:
        return answer_json(rendered(await read_object(request), self._host.options, self._host.tokenizer))

    async def _switched_off(self, _: web.Request) -> web.StreamResponse:
        message = "This endpoint needs --enable-scale-out"
        return answer_json(error_body(message, "PermissionDeniedError", 403), 403)

    async def _abort(self, request: web.Request) -> web.StreamResponse:
        body = await read_object(request)
        if "request_ids" not in body:
            raise BadRequestError("Missing 'request_ids' in request body", kind="Bad Request")
        # one text instead of a list is taken letter by letter, as there: a 200 that ends nothing
        self._host.engine.abort([str(id_) for id_ in body["request_ids"]])
        return web.Response()

    async def _abort_or_all(self, request: web.Request) -> web.StreamResponse:
        body = await read_object(request)
        asked = texts_in(body, "request_ids") or self._host.engine.request_ids()
        self._host.engine.abort(asked)
        return answer_json({"status": "aborted", "aborted": len(asked)})

    async def _pause(self, request: web.Request) -> web.StreamResponse:
        mode = PAUSE_MODES.get(request.query.get("mode", "abort"))
        clear_cache = request.query.get("clear_cache", "true") != "false"
        if mode is None:
            raise BadRequestError(f"mode must be one of {', '.join(PAUSE_MODES)}", param="mode")
        await self._host.engine.pause(mode, clear_cache=clear_cache)
        return answer_json({"status": "paused"})

    async def _resume(self, _: web.Request) -> web.StreamResponse:
        self._host.engine.resume()
        return answer_json({"status": "resumed"})

    async def _is_paused(self, _: web.Request) -> web.StreamResponse:
        return answer_json({"is_paused": self._host.engine.paused is not None})

    async def _update_weight_version(self, request: web.Request) -> web.StreamResponse:
        version = text_in(await read_object(request), "new_version")
        self._host.engine.set_version(version)
        return answer_json({"success": True, "new_version": version})

    async def _weight_info(self, _: web.Request) -> web.StreamResponse:
        return answer_json({"weight_version": self._host.engine.version})

    async def _collective_rpc(self, request: web.Request) -> web.StreamResponse:
        """Loads weights, as vLLM's workers do; they have no label until they get one."""
        body = await read_object(request)
        kwargs = body.get("kwargs") or {}
        path = kwargs.get("weights_path") if isinstance(kwargs, dict) else None
        if body.get("method") != "reload_weights" or not isinstance(path, str):
            raise BadRequestError("expected method reload_weights with a weights_path in kwargs", param="method")
        self._host.engine.load(path)
        return answer_json({"results": [None]})

    async def _reset_prefix_cache(self, _: web.Request) -> web.StreamResponse:
        if self._host.engine.n_running:
            return answer_json({"success": False})
        self._host.engine.cache.clear()
        return answer_json({"success": True})

    async def _health(self, _: web.Request) -> web.StreamResponse:
        return web.Response()

    async def _version(self, _: web.Request) -> web.StreamResponse:
        return answer_json({"version": f"{self._host.options.wire}.0"})

    async def _metrics(self, _: web.Request) -> web.StreamResponse:
        engine = self._host.engine
        samples: list[tuple[str, str, float]] = [
            ("num_requests_running", "", engine.n_running),
            ("num_requests_waiting", "", engine.n_waiting),
            ("kv_cache_usage_perc", "", engine.kv_used),
            ("prefix_cache_queries_total", "", engine.cache.queries),
            ("prefix_cache_hits_total", "", engine.cache.hits),
            ("prompt_tokens_total", "", engine.prompt_tokens),
            ("generation_tokens_total", "", engine.generation_tokens),
            *(
                ("request_success_total", f',finished_reason="{finish}"', n)
                for finish, n in engine.finished.items()
                if finish != "disconnected"
            ),
        ]
        labels = f'engine="0",model_name="{self._host.options.model}"'
        page = [f"vllm:{name}{{{labels}{more}}} {float(value)}\n" for name, more, value in samples]
        return web.Response(text="".join((f"process_start_time_seconds {self._host.started_s:.6f}\n", *page)))

    async def _load(self, _: web.Request) -> web.StreamResponse:
        """Calls that are here, those that a pause holds up included: the one place where vLLM shows them."""
        return answer_json({"server_load": len(self._host.engine.request_ids())})
