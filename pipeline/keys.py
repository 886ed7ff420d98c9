"""Every key in Redis, in one place: its name, type, writer and expiry.

All keys of a shard begin with its hash tag `{<namespace>:<k>}:`, so every script stays in one slot. The Lua twin of the builders is the
head of `scripts/lib.lua`; `tests/integration/pipeline/test_key_names.py` compares the two.

Permanent keys (no expiry; everything else has one):

    meta                hash    layout version, number of shards, bytes reserved for open jobs, window of admission · connection, accept,
    settle, admit
    runs                zset    run -> last contact of its trainer, ms · connect, touch
    classes             set     capability classes that were ever asked for · accept
    streams             set     stage streams that have a group, lanes included · workers
    nodes               zset    node -> last beat, ms · workers
    policies            zset    informativeness policy -> when a supervisor last said that it knows it, ms · supervisors, open_step reads
    janitor             hash    who did the last round, when, quiet until · janitor
    samples             list    a line a minute, twelve: ms, bytes of memory, of the append-only file, jobs that left each stage · janitor
    active[:<class>]    list    runs that have waiting jobs · accept, admit; gone when empty
    deficit[:<class>]   hash    run -> deficit of the round robin · admit; gone when empty
    s:init[:<class>]    stream  headers; group `init` · admit; entries deleted on hand-off
    s:run, s:eval       stream  headers; groups `run`, `eval` · hand-off
    s:<stage>:@<node>   stream  the lane of a node, of INIT or RUN; deleted with its node
    s:reward            stream  events, trimmed: a wake-up, never the only record · settle
    s:cancel            stream  one message a target, trimmed · cancel
    s:dead              stream  dead letters, trimmed · settle, give_up, recover, reject
    z:delay             zset    job -> due, ms · give_up, recover; promote takes out
    z:deadline          zset    job -> wall deadline, ms · accept; terminal takes out
    z:held              zset    group that waits for its trainer's hook -> until, ms · await_reward, terminal; report_group, expire take out
    z:closed            zset    group -> closed at, ms · settle; accounting takes out

Keys of a run, renewed while its trainer is in contact, gone `ttl_ms` after:

    r:<run>             hash    incarnation, state, rev, weight, quota, counters, how long deadlines stood still · connect, scripts
    q:<run>[:<class>]   zset    waiting jobs by priority and order, those of validations in a band above all others · accept
    open:<run>          zset    units (single jobs and groups) without an end -> accepted at · accept, terminal
    aw:<run>            zset    jobs that await a reward from outside or their group's hook -> until, ms · await_reward; their end takes out
    s:results:<run>     stream  terminal jobs, closed groups, finished steps · settle; entries deleted on ack
    steps:<run>         zset    steps -> index · open_step
    st:<run>:<k>        hash    one step; `next` in place of k = counted while none was open · open_step, account, reach
    sg:<run>:<k>        hash    group -> its verdict line, of the groups accounted to a step · account
    p:<run>             zset    reserve of prompts -> place, lowest first · push, launch, account, give_up_groups
    pb:<run>            hash    prompt id -> body, until it is done with · push, account
    pm:<run>            hash    prompt id -> mark (head of scripts/ledger.lua), of every prompt ever pushed · push, launch, account
    fly:<run>           zset    groups in flight, until accounted or given up -> launched at, ms · launch, account, give_up_groups
    ready:<run>         zset    parked groups: informative, but no step had room -> since, ms · account
    vals:<run>          hash    validation's index -> `<state> <serial> <incarnation> <digest> <pin>` · open_validation, end_validation
    mon:<run>           list    one line a closed group, the newest few hundred, for the monitors · account
    tp:<run>:<hash>     string  body of a job template · accept
    gw:<run>            string  words that its gateway remembers: `open` while `/process` takes jobs, `ended` = no more prompts · gateway
    done:<run>:<day>    set     tombstones of units that were acked, two days · ack

Keys of a job, which outlive its deadline by `ttl_ms`, and of a result, until it is acked:

    j:<job>                     hash    state, stage, stream, entry id, attempt, owner, budgets, pointers to bodies
    b:<unit>:prompt             string  the prompt, shared by the members of a group
    b:<job>:<attempt>:<stage>   string  what a stage made
    b:<job>:<attempt>:turns     list    journal of finished turns, until hand-off
    b:<job>:<attempt>:attached  hash    name -> content as it came, of what EVAL keeps beside its grade (logs) · settle, await_reward
    g:<group>, g:<group>:m      hash    the group; member -> its terminal line

Keys of processes, gone when they stop beating:

    w:<consumer>        hash    name lock: boot id, since, beat, and who holds it: stage, node, slots, pid, version;
    skew_ms, its clock less that of Redis; idle_why, why it claims nothing, empty = it does · take_name, renew
    n:<node>                    hash    epoch of a node · beat_node
    n:<node>:run, n:<node>:init hash    its lane is read: epoch, capability classes, `slots:<consumer>`, `until:<consumer>` (ms) · beat_node
    node:<node>                 hash    of shard 0: what a node's launcher says of it, and the lock of its name; a day from the last word
    launchers                   zset    of shard 0: node -> last word of its launcher, ms; a day from the last word
    exporter                    string  of shard 0: boot and address of the metrics exporter that reads; 15 s · exporters

Keys of the inference pool, under a tag of their own, `{<namespace>:pool}` (docs/adr/0012-inference-pool.md). What a run has there lives for
a week from its last use; assignments and calls for an hour, swept when
their lease ran out:

    run:<run>           hash    what the run allows (`ver`), its pause (`pause`, `pause.until`, ...), counters, `rev` · attach, trainers
    servers:<run>       set     addresses · attach, detach
    srv:<run>:<url>     hash    what is said of a server and what the last look saw · attach, keepers
    as:<run>:<url>      zset    <job>:<attempt> -> when its assignment runs out, ms · RUN workers
    calls:<run>:<url>   hash    <job>:<attempt> -> ids of its model calls in flight · RUN workers
    aborts:<run>:<url>  hash    id of a call whose process is gone -> since when it is to be aborted there, ms · sweeps; keepers take out
    places:<run>        hash    `<process> <model>` -> `<limit> <bound> <acting> <held> <until, ms>`; ten seconds · RUN workers
    looks               zset    `<run> <url>` -> when a keeper is to look at it next, ms · attach, keepers
    round               hash    when a keeper last asked (`at`), from when on leases are judged again (`judges`), ms · keepers
    grp:<run>:<group>   string  servers that have members of the group, the first one first; an hour · assign
    holds:<url>         hash    run that has this server -> `own` or `shared` · attach, detach
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from zlib import crc32

from pipeline.messages import Stage

LAYOUT_VERSION = 1
RUN_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,47}\Z")
PROMPT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")
VALIDATION_LANE = 2**49
"""Waiting jobs with a score of at least this are those of validations (`take_waiting` in the script library)."""
VALIDATION_GROUP = re.compile(r"[^.]+\.v(\d+)-\d+\.\d+\Z")
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")
DAY_MS = 86_400_000

PERMANENT = frozenset(
    (
        "meta",
        "runs",
        "classes",
        "streams",
        "policies",
        "nodes",
        "janitor",
        "samples",
        "active",
        "deficit",
        "s:init",
        "s:run",
        "s:eval",
        "s:reward",
        "s:cancel",
        "s:dead",
        "z:delay",
        "z:deadline",
        "z:held",
        "z:closed",
    )
)
PERMANENT_PREFIXES = ("active:", "deficit:", "s:init:", "s:run:@", "s:eval:@")


def shard_of(run: str, shards: int) -> int:
    """Number of the shard that holds everything of `run`."""
    return crc32(run.encode()) % shards


@dataclass(frozen=True, slots=True)
class Keys:
    """Builder of the key names of one shard."""

    tag: str
    """The hash tag with its braces, such as `{rs:0}`."""

    @classmethod
    def of_shard(cls, namespace: str, shard: int) -> Keys:
        """The keys of shard number `shard` of a namespace."""
        return cls(f"{{{namespace}:{shard}}}")

    @classmethod
    def of_pool(cls, namespace: str) -> Keys:
        """The keys of the inference pool of a namespace."""
        return cls(f"{{{namespace}:pool}}")

    @property
    def pool(self) -> Keys:
        """The keys of the inference pool beside this shard."""
        return self.of_pool(self.tag[1:-1].rpartition(":")[0])

    def key(self, *parts: str | int) -> str:
        """Any key: the tag and the parts, joined by colons."""
        return ":".join((self.tag, *map(str, parts)))

    def short(self, key: str) -> str:
        """A key without its tag, as scripts and people name streams."""
        return key.removeprefix(self.tag + ":")

    @property
    def meta(self) -> str:
        return self.key("meta")

    def stage_stream(self, stage: Stage, *, capability: str = "none", node: str = "") -> str:
        """The common stream of a stage (INIT has one a capability class), or the lane of a node."""
        if node:
            return self.key("s", stage.value, "@" + node)
        if stage is Stage.INIT and capability != "none":
            return self.key("s", "init", capability)
        return self.key("s", stage.value)

    def queue(self, run: str, capability: str = "none") -> str:
        return self.key("q", run) if capability == "none" else self.key("q", run, capability)

    def results(self, run: str) -> str:
        return self.key("s:results", run)

    @property
    def reward(self) -> str:
        return self.key("s:reward")

    @property
    def cancel(self) -> str:
        return self.key("s:cancel")

    @property
    def dead(self) -> str:
        return self.key("s:dead")

    def job(self, job: str) -> str:
        return self.key("j", job)

    def body(self, job: str, attempt: int | str, kind: str) -> str:
        return self.key("b", job, attempt, kind)

    def attached(self, job: str, attempt: int | str) -> str:
        return self.body(job, attempt, "attached")

    def prompt(self, unit: str) -> str:
        return self.key("b", unit, "prompt")

    def template(self, run: str, template: str) -> str:
        return self.key("tp", run, template)

    def group(self, group: str) -> str:
        return self.key("g", group)

    def members(self, group: str) -> str:
        return self.key("g", group, "m")

    def run(self, run: str) -> str:
        return self.key("r", run)

    def awaiting(self, run: str) -> str:
        return self.key("aw", run)

    def open_units(self, run: str) -> str:
        return self.key("open", run)

    def steps(self, run: str) -> str:
        return self.key("steps", run)

    def step(self, run: str, index: int | str) -> str:
        return self.key("st", run, index)

    def step_groups(self, run: str, index: int | str) -> str:
        return self.key("sg", run, index)

    def reserve(self, run: str) -> str:
        return self.key("p", run)

    def prompt_bodies(self, run: str) -> str:
        return self.key("pb", run)

    def prompt_marks(self, run: str) -> str:
        return self.key("pm", run)

    def flying(self, run: str) -> str:
        return self.key("fly", run)

    def parked(self, run: str) -> str:
        return self.key("ready", run)

    def validations(self, run: str) -> str:
        return self.key("vals", run)

    def window(self, run: str) -> str:
        return self.key("mon", run)

    def gateway(self, run: str) -> str:
        return self.key("gw", run)

    @property
    def held(self) -> str:
        return self.key("z:held")

    @property
    def closed(self) -> str:
        return self.key("z:closed")

    @property
    def policies(self) -> str:
        return self.key("policies")

    @property
    def runs(self) -> str:
        return self.key("runs")

    @property
    def samples(self) -> str:
        return self.key("samples")

    def done(self, run: str, at_ms: int) -> str:
        return self.key("done", run, at_ms // DAY_MS)

    def pool_run(self, run: str) -> str:
        return self.key("run", run)

    def pool_servers(self, run: str) -> str:
        return self.key("servers", run)

    def pool_server(self, run: str, url: str) -> str:
        return self.key("srv", run, url)

    def pool_leases(self, run: str, url: str) -> str:
        return self.key("as", run, url)

    def pool_calls(self, run: str, url: str) -> str:
        return self.key("calls", run, url)

    def pool_aborts(self, run: str, url: str) -> str:
        return self.key("aborts", run, url)

    def pool_places(self, run: str) -> str:
        return self.key("places", run)

    @property
    def pool_round(self) -> str:
        return self.key("round")

    @property
    def looks(self) -> str:
        return self.key("looks")

    def worker(self, consumer: str) -> str:
        return self.key("w", consumer)

    def node(self, node: str) -> str:
        return self.key("n", node)

    def launched_node(self, node: str) -> str:
        return self.key("node", node)

    @property
    def launchers(self) -> str:
        return self.key("launchers")

    @property
    def exporter(self) -> str:
        return self.key("exporter")

    def is_permanent(self, key: str) -> bool:
        """Whether a key may stand without expiry."""
        short = self.short(key)
        return short in PERMANENT or short.startswith(PERMANENT_PREFIXES)


def run_ids(words: Iterable[bytes]) -> list[str]:
    """The runs among members of the key `runs`. What no run may be called was written there by another hand, and nobody looks after it."""
    names = (word.decode("utf-8", "replace") for word in words)
    return [name for name in names if RUN_ID.match(name)]


def run_of(unit: str) -> str:
    """The run of a job or group id."""
    return unit.split(".", 1)[0]


def group_id(run: str, prompt: str, draw: int) -> str:
    """Id of the group that samples `prompt` for the `draw`-th time."""
    return f"{run}.{prompt}.{draw}"


def job_id(group: str, member: int) -> str:
    """Id of one member of a group."""
    return f"{group}.{member}"


def validation_prompt(serial: int, row: int) -> str:
    """Prompt part of the group ids of a validation. Prompts of a feed are `e<epoch>-<row>`: they never meet."""
    return f"v{serial}-{row}"


def validation_serial(group: str) -> int | None:
    """The validation that a group belongs to; None when it belongs to none."""
    match = VALIDATION_GROUP.match(group)
    return int(match[1]) if match else None
