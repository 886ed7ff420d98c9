"""What the parts of Rollstream say to each other, as frozen records.

Legend for array shapes: T tokens of one segment.

These records travel as msgpack maps (`pipeline/codec.py`). The rules that let old and new processes work together:
fields are never renamed or re-meant, new ones have defaults, unknown ones are ignored, and no class is named on the wire.
People and other programs speak to us through `pipeline/requests.py` (pydantic), never through these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

SCHEMA_MAJOR = 1
"""Major version of every record here. A reader hands back what is newer (`errors.NewerMessage`)."""

U32 = NDArray[np.uint32]
U8 = NDArray[np.uint8]
F32 = NDArray[np.float32]
Json = Mapping[str, object]
"""A map of plain values (str, int, float, bool, None, lists and maps of them)."""


class Stage(StrEnum):
    """Where a job stands in the pipeline."""

    INIT = "init"
    """The sandbox and its tools are made."""
    RUN = "run"
    """The agent takes its turns against the model."""
    EVAL = "eval"
    """The reward is computed."""


class Outcome(StrEnum):
    """How a job ended; set once, by the script that settles it."""

    OK = "ok"
    """It ran to an end the policy chose and was graded."""
    MODEL_FAILURE = "model_failure"
    """A limit the policy can hit, or something this trajectory broke; in the statistics, with its reward."""
    INFRA_FAILURE = "infra_failure"
    """Anything else that broke; never a reward, never in the statistics."""
    CANCELLED = "cancelled"
    """Somebody asked for it (`CancelReason`)."""
    EXPIRED = "expired"
    """Its wall deadline passed outside the agent's own time."""


class StopReason(StrEnum):
    """Why the agent's turns ended. Closed list: trainers set a policy for each (`train`, `mask`, `exclude`)."""

    FINISHED = "finished"
    """The model ended its turn without a tool call, or called `finish`."""
    TURNS = "turns"
    """The limit of turns."""
    TOKENS = "tokens"
    """The limit of sampled tokens, of one turn or of all."""
    CONTEXT = "context"
    """The model's context is full."""
    TIME = "time"
    """The limit of active RUN time."""
    STUCK = "stuck"
    """The same call again and again."""
    SANDBOX_BROKEN = "sandbox_broken"
    """The sandbox died during this trajectory's own tool call while its neighbours live."""
    GRADER_BROKEN = "grader_broken"
    """The grader fails on this answer, but grades the gold one."""
    DEADLINE = "deadline"
    """The wall deadline came while the agent ran; the partial trajectory is kept."""
    LOST = "lost"
    """The attempt was lost and its finished turns were salvaged from the journal."""


class CancelReason(StrEnum):
    """Why a job was cancelled."""

    REDUNDANT = "redundant"
    """The step has its target without it."""
    STALE = "stale"
    """Its policy version is older than its run allows."""
    USER = "user"
    """A person or the trainer asked."""
    DEADLINE = "deadline"
    """The wall deadline passed while a worker held it."""
    OVERLOAD = "overload"
    """Shed to relieve the engines."""
    ABANDONED = "abandoned"
    """The trainer of its run is gone, and the run was closed."""


class Recovery(StrEnum):
    """What happens to a job whose RUN attempt was lost."""

    RESTART = "restart"
    """From INIT, in a new sandbox."""
    SALVAGE_PARTIAL = "salvage_partial"
    """To EVAL with the turns that were journalled."""


class RewardSource(StrEnum):
    """Who gives a job its reward."""

    TASK = "task"
    """The task's grader, in EVAL."""
    OUTSIDE = "outside"
    """Whoever reports it: the job awaits that after EVAL, which grades nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a model call samples. Recorded with every turn."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 = all."""
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int = 1024
    """Most tokens one call may sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a job may use. Hitting one in RUN is the model's doing (`StopReason`)."""

    max_turns: int = 8
    max_sampled_tokens: int = 16_384
    """Over all turns of the trajectory."""
    max_context_tokens: int = 32_768
    """Prompt and answer together; the server's own bound applies when it is lower."""
    max_observation_tokens: int = 1024
    """A tool's answer is cut to this many tokens, head and tail kept."""
    tool_timeout_s: float = 30.0
    init_active_s: float = 300.0
    run_active_s: float = 1800.0
    """Active time of RUN: waiting for a slot or a server does not count."""
    eval_active_s: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSettings:
    """How dialogues with the model become tokens: which family's template, which tokenizer. Workers read it; sandboxes never do."""

    family: str = "chatml"
    """`chatml`, `llama3`, or `renderers`: one of the families of the package of that name."""
    renderer: str = ""
    """With `renderers`: the package's name of the family, such as `glm-4.5`."""
    tokenizer: str = ""
    """Path of a `tokenizer.json`, or of a folder with one, on every RUN worker; empty = the small one of the scripted server."""
    thinking: str = "free"
    """`free`: the model opens its thoughts itself; `open`: the template opens one; `off`: the template writes an empty one."""
    keep_thinking: bool = True
    """Whether earlier thoughts stay when a user speaks again; else they are cut out then, and a new segment begins."""
    tool_format: str = ""
    """How the model writes calls: `hermes`, `qwen3_coder` or `llama3_json`; empty = the family's own way."""
    options: Json = field(default_factory=dict)
    """Switches of the family's template, by their names there."""
    template_differences: tuple[str, ...] = ()
    """Canonical dialogues on which the server's own template may write something else."""
    images: bool = False
    """Whether the model sees images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedExperts:
    """A model's experts, as far as their numbers must be known: asked for with it, its servers say which ones each token was routed to."""

    layers: int
    """With experts; not the dense ones among them."""
    top_k: int
    """Experts a token and layer."""
    experts: int
    """Experts a layer; up to 256 fit into a byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTemplate:
    """All that the jobs of one feed have in common; stored once a run, named by its hash."""

    task: str
    """Name of the handler."""
    model: str = ""
    """Model asked for at the server; empty = the only one it has."""
    sampling: Sampling = field(default_factory=Sampling)
    limits: Limits = field(default_factory=Limits)
    chat: ChatSettings = field(default_factory=ChatSettings)
    options: Json = field(default_factory=dict)
    """The handler's own settings."""
    run_seed: int = 0
    capability: str = "none"
    """Class of node that INIT needs: `none`, `isolated`, `isolated+network`."""
    recovery: Recovery = Recovery.RESTART
    priority: int = 0
    """-100 to 100; higher goes first within the run."""
    wall_s: float = 86_400.0
    """From accepted to terminal."""
    max_failed: int = 2
    """Retries after failures that a worker reported."""
    max_lost: int = 5
    """Retries after losses (the worker died)."""
    expected_bytes: int = 65_536
    """Reserved in Redis for the job's bodies until it is settled."""
    reward: RewardSource = RewardSource.TASK
    reward_deadline_s: float = 3600.0
    """For a reward from outside: from the end of RUN until it ends without one."""
    hold_s: float = 0.0
    """Above 0: its group is held for the trainer's group hook, at most this long, before it closes."""
    deterministic: bool = False
    """What is sampled depends on nothing but the run seed, the prompt, the member and the weights (ADR 11)."""
    exact_logprobs: bool = True
    """Whether recorded logprobs must be those of the distribution sampled from, as a trainer's ratio needs. Validations do without."""
    routed_experts: RoutedExperts | None = None
    """None = nobody asks which experts tokens were routed to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One task instance."""

    id: str
    """Stable within the run: epoch and index."""
    data: Json
    """What the handler needs (question, gold answer, image, ...)."""
    first_member: int = 0
    """Number of the first job that samples it: one that stands for a member of another group has that member's number, and so its seeds."""
    traceparent: str = ""
    """Span of the trainer that asked for it (`pipeline/trace_context.py`); empty = none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A job as a stage sees it: who it is and what to do."""

    job: str
    run: str
    group: str
    """Empty for a single job."""
    member: int
    draw: int
    """How often its prompt was drawn before."""
    attempt: int
    """The fencing token: every outside name (sandbox, model request, file) carries it."""
    template: JobTemplate
    prompt: Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSpan:
    """A stretch of sampled tokens that one policy version sampled."""

    version: str
    """Label of the weights, `<incarnation>.<number>`, or the server's own word."""
    start: int
    """First token of the stretch, as an index into the segment."""
    end: int
    """One past the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One model call and what the environment answered."""

    index: int
    segment: int
    start: int
    """Index in the segment of the first token sampled in this turn."""
    end: int
    """One past the last sampled token."""
    finish: str
    """The server's word: `stop`, `length` or `abort`."""
    sampling: Sampling
    seed: int
    server: str
    request_id: str
    cached_tokens: int
    """Prompt tokens the server had in its prefix cache; -1 = it does not say."""
    logprobs_mode: str
    template: str
    """Fingerprint of the renderer's template."""
    tokenizer: str
    """Fingerprint of the tokenizer."""
    model_s: float
    tools_s: float = 0.0
    tool_calls: int = 0
    tool_errors: int = 0
    """Calls that could not be parsed or that no tool takes."""
    checksum: int = -1
    """CRC-32 of all ids of its segment up to `end`, continued over the logprobs of its own tokens, made from the server's answer; -1 = none
    was made. Whoever holds the record can see that neither ids nor logprobs changed on the way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """An array beside a segment, too large for the record: where it lies and what it is (`pipeline/blobs`)."""

    name: str
    """What it is; `routed_experts` and `image` are known to all."""
    digest: str
    """SHA-256 of its bytes, in hexadecimal."""
    dtype: str
    """numpy's name; its bytes are little endian."""
    shape: tuple[int, ...]
    n_bytes: int
    uri: str
    """`blob:<run>/<job>/<attempt>-<nonce>/<file>`, in the store that its workers and trainer share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentImage:
    """An image that the model saw in a segment: where it stands, and the blob that is its file."""

    start: int
    """First of its placeholder tokens, as an index into the segment."""
    end: int
    """One past the last."""
    media_type: str
    """`image/png`, `image/jpeg` or `image/webp`."""
    width: int
    """Pixels, as its header says."""
    height: int
    blob: Blob
    """uint8, shape [n_bytes]: the file as it came. Equal files of one job are one blob."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of one trajectory in which every prompt extends the one before.

    The four arrays have one entry a token of the whole interleaved sequence.
    """

    token_ids: U32
    """uint32, shape [T]."""
    sampled_mask: U8
    """uint8, shape [T]; 1 exactly on the tokens sampled in this segment. Never changes."""
    loss_mask: U8
    """uint8, shape [T]; at most `sampled_mask`. Policy."""
    logprobs: F32
    """float32, shape [T], nats; finite where `sampled_mask` is 1, NaN elsewhere."""
    versions: tuple[VersionSpan, ...] = ()
    """Policy version of each stretch of sampled tokens, in order; together they cover `sampled_mask`."""
    began: str = "start"
    """Why the segment began: `start`; or what kept it from extending the one before: `thinking_dropped`, or `prompt_diverged`
    when nobody said (ADR 14)."""
    parent: int = -1
    """Segment it forked from; -1 = none."""
    fork: int = 0
    """Tokens it shares with its parent."""
    blobs: tuple[Blob, ...] = ()
    """Arrays that are kept beside it, each name once."""
    images: tuple[SegmentImage, ...] = ()
    """In the order in which they stand; none overlaps another, or a sampled token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """A line of the conversation as text, for people; trainers read the segments."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """What one job produced."""

    segments: tuple[Segment, ...]
    turns: tuple[Turn, ...]
    stop: StopReason
    messages: tuple[ChatMessage, ...] = ()
    answer: str = ""
    """The text that is graded: the model's last message, or what it passed to `finish`."""
    extra: Json = field(default_factory=dict)
    """The handler's own (patch, counters)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """What EVAL found."""

    reward: float
    """The unshaped task score."""
    components: Mapping[str, float] = field(default_factory=dict)
    """Named parts; the filter looks at one of them (default: `score`, the reward itself)."""
    details: Json = field(default_factory=dict)
    """Verdict, extracted answer, log excerpts: for people."""
    grader: str = ""
    """Name and version."""
    seconds: float = 0.0
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Digests of what was judged, the trajectory's `answer` and `extra`; the stage writes them."""
    attached: Mapping[str, int] = field(default_factory=dict)
    """By-products that were kept beside it: name to bytes as kept; the stage writes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a stage could not do its work. Data, made where the stage runs."""

    stage: Stage
    boundary: str
    """What broke: `sandbox`, `model`, `grader`, `service` (that a grader asks), `blobs`, `broker`, `stage` (its limit), `handler`,
    `body`."""
    kind: str
    """The error's class."""
    message: str
    retryable: bool
    """Whether another attempt can help."""
    traceback: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSize:
    """How large one segment of a trajectory is, as the record of its job says."""

    tokens: int
    """Its tokens in all."""
    loss_tokens: int
    """Those whose `loss_mask` is 1, before the run's policy by stop reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryCounts:
    """What a trajectory counts up to, as the record of its job says."""

    tool_calls: int = 0
    tool_errors: int = 0
    """Calls that could not be parsed or that no tool takes."""
    prompt_tokens: int | None = None
    """Of all model calls whose server says how much of the prompt it had; None = none says."""
    cached_tokens: int | None = None
    """How much of those it had in its prefix cache."""
    neg_logprob: float | None = None
    """Minus the sum of the logprobs of all sampled tokens, in nats; None = not known."""
    model_s: float = 0.0
    tools_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """How an attempt ends a job: what the settle script is told."""

    outcome: Outcome
    reason: str = ""
    """Stop reason, cancel reason or failure in a word or two."""
    reward: float | None = None
    """None = no reward; never 0 in its place."""
    components: Mapping[str, float] = field(default_factory=dict)
    stop: str = ""
    sampled_tokens: int = 0
    total_tokens: int = 0
    turns: int = 0
    first_version: str = ""
    last_version: str = ""
    segments: tuple[SegmentSize, ...] = ()
    """Of its trajectory, in order; empty = there is none, or nobody counted."""
    counts: TrajectoryCounts | None = None
    """Of its trajectory; None = there is none, or nobody counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """A terminal record as read from the results stream; bodies are fetched when asked for."""

    entry: str
    """Entry id in the results stream."""
    job: str
    run: str
    group: str
    member: int
    task: str
    outcome: Outcome
    reason: str
    reward: float | None
    components: Mapping[str, float]
    stop: str
    attempt: int
    """Attempt that settled it."""
    run_attempt: int
    """Attempt whose trajectory is kept; 0 = none."""
    eval_attempt: int
    """Attempt whose grade is kept; 0 = none."""
    sampled_tokens: int
    total_tokens: int
    turns: int
    first_version: str
    last_version: str
    seconds: Mapping[str, float]
    """Seconds a stage, of the attempts that were kept, and `total`."""
    spent_tokens: int = 0
    """Sampled tokens of all attempts, also of one that was cut off; as far as finished turns tell."""
    segments: tuple[SegmentSize, ...] = ()
    """Of its trajectory, in order; empty = not known: none, too many for a record, or an older worker's. The trajectory tells."""
    counts: TrajectoryCounts | None = None
    """Of its trajectory; None = not known."""
    waits: Mapping[str, float] = field(default_factory=dict)
    """Seconds before each stage began, since the one before had done its work (for INIT, since it was accepted): queues, retries and model
    servers. Of stages that it came to, when its last attempts were the only ones; longer where attempts were lost."""
