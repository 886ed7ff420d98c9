"""SGLang's routes over the scripted engine (0.5): the newest version's, and those of one that shows less.

What it imitates beside the forms: ids that are in use are refused; an abort reaches every call whose id begins with the one that is named,
if that one is there; a call that waits for the end of a pause is out of reach; a new label aborts all calls unless told not to; a flush is
refused while calls run, and while they wait unless a pause holds them; `/health` fails during a pause.
"""

from __future__ import annotations

from aiohttp import web

from workers.llm.scripted.call import Call, Output
from workers.llm.scripted.faults import Corruption
from workers.llm.scripted.http import BadRequestError, Body, answer_json, read_object, text_in
from workers.llm.scripted.routes import Handler, Host
from workers.llm.scripted.sglang_bodies import longest_prompt, read_generate, write_generate
from workers.llm.scripted.sglang_faults import corrupt, dictate_logprobs
from workers.llm.sglang_wire import GENERATE

UNGUARDED = ("/health", "/ready", "/metrics", "/scripted")


class SglangRoutes:
    """The routes of one server."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.generation = (GENERATE,)
        self._shows_all = host.options.wire == "sglang-0.5"
        self._last_pause = ""

    def add_to(self, app: web.Application) -> None:
        """All but that of generation."""
        gets: dict[str, Handler] = {
            "/health": self._health,
            "/model_info": self._model_info,
            "/get_model_info": self._model_info,
            "/server_info": self._server_info,
            "/metrics": self._metrics,
            "/v1/loads": self._loads,
        }
        if self._shows_all:
            gets["/ready"] = self._ready
        posts: dict[str, Handler] = {
            "/abort_request": self._abort,
            "/pause_generation": self._pause,
            "/continue_generation": self._continue,
            "/flush_cache": self._flush,
            "/update_weight_version": self._update_weight_version,
            "/update_weights_from_disk": self._update_weights,
        }
        for path, handler in gets.items():
            app.router.add_route("GET", path, handler)
        for path, handler in posts.items():
            app.router.add_route("POST", path, handler)

    def is_guarded(self, path: str) -> bool:
        """The key guards all but what says whether the server lives."""
        return not path.startswith(UNGUARDED)

    def error(self, message: str, kind: str, status: int, param: str = "") -> Body:
        """An error as SGLang words it."""
        return {"error": {"message": message}}

    def detokenized(self, text: str) -> Body:
        """The answer of `/detokenize`."""
        return {"text": text}

    def id_in(self, body: Body) -> object:
        """The name that a request gives itself."""
        return body.get("rid")

    def read(self, path: str, body: Body, name: str) -> Call:
        """The call that a request asks for."""
        if name in self._host.engine.request_ids():
            raise BadRequestError(f"Duplicate request ID detected: {name}")
        return read_generate(body, name, self._host.options, self._host.tokenizer)

    def write(self, path: str, body: Body, call: Call, output: Output) -> Body:
        """The answer."""
        host = self._host
        experts = host.options.routed_experts
        answer = write_generate(body, call, output, host.engine.version, host.tokenizer, shows_all=self._shows_all, experts=experts)
        dictate_logprobs(answer, body)
        return answer

    def corrupt(self, answer: Body, how: Corruption) -> Body | list[Body] | bytes:
        """The answer, bent."""
        return corrupt(answer, how)

    # ---- control

    async def _abort(self, request: web.Request) -> web.StreamResponse:
        body, engine = await read_object(request), self._host.engine
        rid, ids = body.get("rid") or "", engine.request_ids()
        if body.get("abort_all") is True:
            engine.abort(ids, accepted_only=True)
        elif rid in ids:
            engine.abort([id_ for id_ in ids if id_.startswith(rid)], accepted_only=True)
        return web.Response()

    async def _pause(self, request: web.Request) -> web.StreamResponse:
        mode = (await read_object(request)).get("mode", "abort")
        if mode not in ("abort", "retract", "in_place"):
            raise BadRequestError(f"unknown mode {mode!r}", status=422)
        self._last_pause = mode
        await self._host.engine.pause("abort" if mode == "abort" else "keep", clear_cache=False)
        return answer_json({"message": "Generation paused successfully.", "status": "ok"})

    async def _continue(self, request: web.Request) -> web.StreamResponse:
        await read_object(request)  # a request without a body is refused
        self._host.engine.resume()
        return answer_json({"message": "Generation continued successfully.", "status": "ok"})

    async def _flush(self, _: web.Request) -> web.StreamResponse:
        engine = self._host.engine
        if (engine.n_running or engine.n_waiting) and not self._retracted:
            return web.Response(text="Flush cache failed.\n", status=400)
        engine.flush()
        return web.Response(text="Cache flushed.\n")

    async def _update_weight_version(self, request: web.Request) -> web.StreamResponse:
        body, engine = await read_object(request), self._host.engine
        version = text_in(body, "new_version")
        if body.get("abort_all_requests", True):
            engine.abort(engine.request_ids(), accepted_only=True)
        engine.set_version(version)
        return answer_json({"success": True, "message": f"Weight version updated to {version}", "new_version": version})

    async def _update_weights(self, request: web.Request) -> web.StreamResponse:
        body, engine = await read_object(request), self._host.engine
        engine.load(text_in(body, "model_path"))
        if body.get("flush_cache", True) and (self._retracted or not engine.n_running):
            engine.flush()
        if isinstance(body.get("weight_version"), str):
            engine.set_version(body["weight_version"])
        return answer_json({"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0})

    # ---- about

    async def _health(self, _: web.Request) -> web.StreamResponse:
        return web.Response(status=503 if self._host.engine.paused else 200)

    async def _ready(self, _: web.Request) -> web.StreamResponse:
        return web.Response(status=503 if self._host.engine.paused else 200)

    async def _model_info(self, _: web.Request) -> web.StreamResponse:
        options = self._host.options
        return answer_json(
            {
                "model_path": f"/models/{options.model}",
                "served_model_name": options.model,
                "is_generation": True,
                "weight_version": self._host.engine.version,
            }
        )

    async def _server_info(self, _: web.Request) -> web.StreamResponse:
        options = self._host.options
        info: Body = {
            "version": "0.5.23" if self._shows_all else "0.5.10",
            "served_model_name": options.model,
            "context_length": options.max_model_len,
            "max_req_input_len": longest_prompt(options),
            "enable_deterministic_inference": True,
        }
        if self._shows_all:
            info["startup_time"] = {"tokenizer_e2e": self._host.started_s % 60}
        return answer_json(info)

    async def _loads(self, _: web.Request) -> web.StreamResponse:
        running, waiting = self._load()
        return answer_json(
            {"loads": [{"dp_rank": 0, "num_running_reqs": running, "num_waiting_reqs": waiting, "token_usage": self._host.engine.kv_used}]}
        )

    async def _metrics(self, _: web.Request) -> web.StreamResponse:
        engine, (running, waiting) = self._host.engine, self._load()
        samples: dict[str, float] = {
            "num_running_reqs": running,
            "num_queue_reqs": waiting,
            "token_usage": engine.kv_used,
            "prompt_tokens_total": engine.prompt_tokens,
            "generation_tokens_total": engine.generation_tokens,
            "cached_tokens_total": engine.cache.hits,
        }
        labels = f'model_name="{self._host.options.model}",tp_rank="0"'
        return web.Response(text="".join(f"sglang:{name}{{{labels}}} {value}\n" for name, value in samples.items()))

    @property
    def _retracted(self) -> bool:
        """Whether a pause took their keys and values from the calls in flight."""
        return self._host.engine.paused is not None and self._last_pause == "retract"

    def _load(self) -> tuple[int, int]:
        """Calls running and waiting; what was retracted waits."""
        engine = self._host.engine
        return (0, engine.n_running + engine.n_waiting) if self._retracted else (engine.n_running, engine.n_waiting)
