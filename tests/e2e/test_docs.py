"""What the documents say is what the product does: commands, links, code, tables."""

from __future__ import annotations

import ast
import asyncio
import itertools
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
import typer.main
from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from typer._click.exceptions import UsageError

from ops.cli.app import app
from ops.gateway import GatewaySettings
from ops.housekeeping import HousekeepingSettings
from ops.launcher import make_bundle
from ops.launcher.steps import STEPS
from ops.llm_server.settings import VllmSettings
from ops.metrics.settings import MetricsSettings
from ops.node.settings import NodeSettings
from ops.plan.settings import PlanSettings
from pipeline.blobs import BlobSettings
from pipeline.codec import encode
from pipeline.keys import Keys
from pipeline.messages import CancelReason, Outcome, Prompt, Stage, StopReason
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts import Scripts
from pipeline.scripts.run_calls import RunScripts
from pipeline.scripts.step_calls import StepScripts
from pipeline.settings import QueueSettings
from pipeline.supervisor.actions import Verdict
from pipeline.supervisor.loop import Supervisor
from pipeline.testing import ManualWorker, a_grade, a_settlement, a_trajectory, wait_until
from tests.e2e.conftest import ROOT, Command
from tests.e2e.documents import (
    INLINE,
    LINK,
    Block,
    blocks,
    cells,
    documents,
    first_column,
    listed_failpoints,
    prose,
    section,
    shown_commands,
)
from trainer_client import JobRequest, StepRequest, connect
from workers.graders.gym import GymSettings
from workers.graders.services import ScorerSettings
from workers.sandbox.images import ImageSettings
from workers.sandbox.service.settings import SandboxSettings
from workers.settings import WorkerSettings
from workers.tools.search import SearchSettings

REFERENCE = ROOT / "docs/reference"
PACKAGES = ("pipeline", "workers", "trainer_client", "ops")
PYTHON_BLOCKS = [block for block in blocks(*documents()) if block.language == "python"]


def sources(*folders: str) -> str:
    """All Python below some folders, as one text."""
    return "\n".join(path.read_text(encoding="utf-8") for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))


# ---- commands


def complaint(words: Sequence[str]) -> str:
    """What `rollstream WORDS` would say against its usage; empty when nothing. Nothing is run."""
    command: Any = typer.main.get_command(app)  # Any: typer keeps the classes of its own copy of click private
    left, name = list(words), "rollstream"
    while hasattr(command, "commands"):
        if left[:1] in (["--help"], []):
            return ""
        if left[0] not in command.commands:
            return f"{name} has no command {left[0]!r}"
        name, command = f"{name} {left[0]}", command.commands[left.pop(0)]
    try:
        command.make_context(name, left)
    except UsageError as error:
        return f"{name}: {error.format_message()}"
    return ""


@pytest.mark.parametrize(
    ("place", "words"), shown_commands("rollstream"), ids=lambda value: value if isinstance(value, str) else " ".join(value)
)
def test_each_command_shown_is_one_that_is_taken(place: str, words: list[str]) -> None:
    assert complaint(words) == "", place


def test_a_command_that_does_not_exist_is_noticed() -> None:
    """That the test above can fail."""
    assert "no command 'polish'" in complaint(["llm", "polish", "http://x"])
    assert "No such option" in complaint(["top", "--often"])
    assert "Missing option" in complaint(["worker", "run"])
    assert "Missing argument" in complaint(["job", "show"])
    assert complaint(["bench", "codec", "--json"]) == ""


def test_the_page_of_commands_has_all_of_them() -> None:
    def walk(command: Any, name: str) -> list[str]:
        if not hasattr(command, "commands"):
            return [name]
        return [leaf for word, inner in command.commands.items() for leaf in walk(inner, f"{name} {word}")]

    page = section(REFERENCE / "commands.md", "rollstream")

    assert sorted(first_column(page)) == sorted(walk(typer.main.get_command(app), "rollstream"))


def test_the_page_of_commands_shows_each_option_once_at_least() -> None:
    shown: dict[tuple[str, ...], set[str]] = {}
    for place, words in shown_commands("rollstream"):
        if place == "docs/reference/commands.md":
            shown.setdefault((*words[:2],), set()).update(word for word in words if word.startswith("--"))
    command: Any = typer.main.get_command(app)
    missing = []
    for noun, inner in command.commands.items():
        for verb, leaf in getattr(inner, "commands", {}).items():
            if (noun, verb) != ("redis", "cli"):  # its options are those of redis-cli, which it reads itself
                options = {parameter.opts[0] for parameter in leaf.params if parameter.opts[0].startswith("--")}
                missing += [f"{noun} {verb} {option}" for option in sorted(options - shown.get((noun, verb), set()))]

    assert missing == []


def test_each_command_of_the_launcher_that_is_shown_exists(command: Command) -> None:
    helped, of_nodes = command("ops.demo", "--help").stdout, command("ops.cli", "node", "run", "--help").stdout
    of_servers = command("ops.cli", "llm", "node", "--help").stdout
    of_bundles = {f"--{name}" for name in vars(make_bundle.parse([]))}
    for place, words in shown_commands("./ops/launch"):
        match words:
            case ["demo", *options]:
                assert all(option in helped for option in options if option.startswith("--")), (place, words)
            case ["node", *options]:
                assert all(option in of_nodes for option in options if option.startswith("--") and option != "--bundle"), (place, words)
            case ["llm", *options]:
                assert all(option in of_servers for option in options if option.startswith("--") and option != "--bundle"), (place, words)
            case ["bundle", *options]:
                assert {option for option in options if option.startswith("--")} <= of_bundles, (place, words)
            case ["setup", "--bundle", _]:
                pass
            case ["test", *rest]:
                known = {"--quick", "--system-packages", *(step.name for step in STEPS), "STEP"}
                assert set(rest) <= known, (place, words)
            case ["setup"] | ["setup", "--dev"] | ["down"] | []:
                pass
            case _:
                pytest.fail(f"{place}: ./ops/launch {' '.join(words)}")


@pytest.mark.parametrize("module", ["workers.llm.scripted", "ops.chaos"])
def test_each_option_of_a_module_that_is_shown_exists(command: Command, module: str) -> None:
    helped = command(module, "--help").stdout
    shown = [words for _, words in shown_commands(f"python -m {module}")]

    assert shown
    assert {word for words in shown for word in words if word.startswith("--")} <= set(re.findall(r"--[\w-]+", helped))


def test_each_script_that_is_shown_is_there_and_takes_its_options(command: Command) -> None:
    shown = [(place, words) for place, words in shown_commands("python") if words[0].endswith(".py")]

    assert {words[0] for _, words in shown} >= {"examples/trainer_loop.py", "examples/single_jobs.py", "tests/cases/run.py"}
    for place, words in shown:
        source = (ROOT / words[0]).read_text(encoding="utf-8")
        for option in (word for word in words if word.startswith("--")):
            assert f'"{option}"' in source, (place, words)


def test_each_file_that_a_command_reads_is_there() -> None:
    for program in ("python", "pip install -e"):
        for place, words in shown_commands(program):
            for word in words:
                if re.match(r"(examples|tests|workers|docs)/", word):
                    assert (ROOT / word).exists(), (place, word)


# ---- links and code


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_each_relative_link_leads_somewhere(document: Path) -> None:
    for target in LINK.findall(prose(document)):
        if re.match(r"[a-z]+://", target):
            continue
        path, _, anchor = target.partition("#")
        found = (document.parent / path).resolve() if path else document
        assert found.exists(), f"{target} leads nowhere"
        assert found.is_relative_to(ROOT), f"{target} leads out of the project"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", found.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}, target


def test_each_document_is_reached_from_the_readme() -> None:
    reached, waiting = set[Path](), [ROOT / "README.md"]
    while waiting:
        document = waiting.pop()
        if document in reached or not document.is_relative_to(ROOT):
            continue
        reached.add(document)
        for target in LINK.findall(prose(document)):
            found = (document.parent / target.partition("#")[0]).resolve()
            if found.suffix == ".md":
                waiting.append(found)
            elif found == ROOT / "docs/adr":
                waiting += found.glob("*.md")

    assert [str(path.relative_to(ROOT)) for path in documents() if path not in reached] == []


@pytest.mark.parametrize("block", PYTHON_BLOCKS, ids=lambda block: block.place)
def test_each_block_of_python_is_python(block: Block) -> None:
    compile(block.text, block.place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 250


def test_each_path_in_code_style_is_there() -> None:
    """`pipeline/keys.py` and the like: a file that was moved is noticed here."""
    for document in documents():
        for word in INLINE.findall(prose(document)):
            if re.fullmatch(r"(pipeline|workers|trainer_client|ops|tests|examples|docs)/[\w./*-]*", word):
                assert any(ROOT.glob(word.rstrip("/"))), f"{document.relative_to(ROOT)}: {word}"


# ---- tables


def shown_default(value: object) -> str:
    """A default as the page writes it."""
    match value:
        case None:
            return "*none*"
        case "":
            return "*empty*"
        case tuple():
            return ",".join(map(str, value)) or "*empty*"
        case _:
            return str(value)


@pytest.mark.parametrize(
    ("heading", "model", "own_words"),
    [
        ("The queue", QueueSettings, {}),
        ("A node", NodeSettings, {}),
        ("Metrics", MetricsSettings, {}),
        ("A worker", WorkerSettings, {"stage": "*required*", "node": "*host*"}),
        ("Blobs", BlobSettings, {}),
        ("The gateway", GatewaySettings, {}),
        ("Web search", SearchSettings, {}),
        ("Text environments", GymSettings, {}),
        ("Reward services", ScorerSettings, {"kind": "*required*", "urls": "*required*"}),
        ("A vLLM server", VllmSettings, {}),
        ("Sandboxes", SandboxSettings, {}),
        ("Images", ImageSettings, {}),
        ("The housekeeping queue", HousekeepingSettings, {}),
        ("A plan", PlanSettings, {}),
    ],
)
def test_the_page_of_settings_agrees_with_the_models(heading: str, model: type[BaseModel], own_words: dict[str, str]) -> None:
    rows = [row for row in cells(section(REFERENCE / "settings.md", heading)) if row[0] != "name"]

    assert [row[0] for row in rows] == list(model.model_fields)
    for name, default, meaning in rows:
        field = model.model_fields[name]
        assert (field.default is PydanticUndefined) == (name in own_words), name
        assert default == own_words.get(name, shown_default(field.default)), name
        assert meaning


def test_each_variable_of_the_environment_is_explained_and_exists() -> None:
    built = {f"ROLLSTREAM_{name.upper()}" for name in QueueSettings.model_fields} | {
        f"ROLLSTREAM_WORKER_{name.upper()}" for name in WorkerSettings.model_fields
    }
    built |= {f"ROLLSTREAM_NODE_{name.upper()}" for name in NodeSettings.model_fields}
    built |= {f"ROLLSTREAM_METRICS_{name.upper()}" for name in MetricsSettings.model_fields}
    built |= {f"ROLLSTREAM_BLOBS_{name.upper()}" for name in BlobSettings.model_fields}
    built |= {f"ROLLSTREAM_GATEWAY_{name.upper()}" for name in GatewaySettings.model_fields}
    built |= {f"ROLLSTREAM_SEARCH_{name.upper()}" for name in SearchSettings.model_fields}
    built |= {f"ROLLSTREAM_GYM_{name.upper()}" for name in GymSettings.model_fields}
    built |= {f"ROLLSTREAM_VLLM_{name.upper()}" for name in VllmSettings.model_fields}
    built |= {f"ROLLSTREAM_SANDBOX_{name.upper()}" for name in SandboxSettings.model_fields}
    built |= {f"ROLLSTREAM_IMAGE_{name.upper()}" for name in ImageSettings.model_fields}
    built |= {f"ROLLSTREAM_HOUSEKEEPING_{name.upper()}" for name in HousekeepingSettings.model_fields}
    built |= {f"ROLLSTREAM_PLAN_{name.upper()}" for name in PlanSettings.model_fields}
    in_sources = set(re.findall(r"ROLLSTREAM_[A-Z0-9_]*[A-Z0-9]\b", sources(*PACKAGES, "tests/contract", "tests/integration"))) | built
    in_sources |= set(
        re.findall(r"ROLLSTREAM_[A-Z_]*[A-Z]\b", (ROOT / "tests/conftest.py").read_text() + (ROOT / "ops/launch").read_text())
    )
    explained = {
        name
        for page in ("settings", "failpoints")
        for name in re.findall(r"ROLLSTREAM_\w*[A-Z0-9]\b", (REFERENCE / f"{page}.md").read_text())
    }
    everywhere = {name for document in documents() for name in re.findall(r"ROLLSTREAM_[A-Z0-9_]*[A-Z0-9]\b", document.read_text())}

    assert sorted(everywhere - in_sources) == []
    assert sorted(in_sources - built - explained - {"ROLLSTREAM_WORKER"}) == []


@pytest.mark.parametrize(
    ("heading", "kinds"),
    [("Outcomes of a job", Outcome), ("Stop reasons", StopReason), ("Cancel reasons", CancelReason), ("Verdicts of a group", Verdict)],
)
def test_the_page_of_outcomes_has_each_word(heading: str, kinds: type[StrEnum]) -> None:
    shown = first_column(section(REFERENCE / "outcomes.md", heading))

    assert sorted(shown) == sorted(kind.value for kind in kinds)


def test_the_page_of_failpoints_has_each_of_them() -> None:
    """After each script under its name or, where the call says so, with the stage in it; and where `failpoint` is called."""
    scripts = {path.stem for path in (ROOT / "pipeline/scripts").glob("*.lua") if path.read_text(encoding="utf-8").startswith("#!lua")}
    of_stages = {
        name: [f"{name}_{stage.value}" for stage in Stage] for name in re.findall(r'place=f"(\w+)_\{stage.value\}"', sources("pipeline"))
    }
    of_stages["hand_off"].remove("hand_off_eval")  # the last stage has no next
    called = re.findall(r'failpoint\("(\w+)"\)', sources(*PACKAGES))

    expected = [*(scripts - of_stages.keys()), *itertools.chain(*of_stages.values()), *called]
    assert set(listed_failpoints()) == set(expected)


def test_the_shapes_of_json_on_the_pages_are_json() -> None:
    """Output of `--json` in the README, broken into lines there, is still what a program could read."""
    lines = [
        text for block in blocks(ROOT / "README.md") for text in re.findall(r"^(\[\[.*?\]\]\])$", block.text, re.DOTALL | re.MULTILINE)
    ]

    assert len(lines) >= 5
    for text in lines:
        for entry, fields in orjson.loads(text):
            assert re.fullmatch(r"\d+-\d+", entry)
            assert len(fields) % 2 == 0


def test_a_task_written_as_the_page_says_has_these_methods() -> None:
    page = ROOT / "docs/how-to/write-a-task.md"
    block = next(block for block in blocks(page) if block.language == "python")
    shown = {node.name for node in ast.walk(ast.parse(block.text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    source = ast.parse((ROOT / "examples/own_task/backwards_task.py").read_text(encoding="utf-8"))
    handler = next(node for node in source.body if isinstance(node, ast.ClassDef))

    assert shown == {node.name for node in handler.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


# ---- streams

STREAMS = REFERENCE / "streams.md"
HEADING_OF_KIND = {"job": "Jobs", "group": "Groups", "step": "Steps", "note": "Notes"}
HEADINGS = ("Stage streams", *HEADING_OF_KIND.values(), "Rewards", "Cancels", "Dead letters")


async def entries(client: AsyncClient, key: str) -> list[dict[str, str]]:
    """All entries of a stream; that every byte is text is promise 11."""
    found = await ask(client, "XRANGE", key, "-", "+")
    assert found, f"{key} is empty"
    decoded = [{name.decode(): value.decode() for name, value in fields.items()} for _, fields in found]
    assert all(value.isprintable() for fields in decoded for value in fields.values())
    return decoded


def fields_of(found: Iterable[dict[str, str]]) -> set[str]:
    """Names of fields that any of some entries has."""
    return {name for fields in found for name in fields}


@pytest.mark.one_server
async def test_the_page_of_streams_explains_each_field_that_a_stream_has_and_no_other(
    settings: QueueSettings, client: AsyncClient, keys: Keys, scripts: Scripts
) -> None:
    """A run by the product's own scripts, trainer and supervisor; only the work of the stages is done by hand."""
    shown = {heading: set(first_column(section(STREAMS, heading))) for heading in HEADINGS}
    shown["Notes"].remove("prompt")  # of a prompt whose body was lost, which only damage brings about
    seen: dict[str, set[str]] = {"Stage streams": set()}
    supervisor, stop, all_read = Supervisor(settings, name="s", period_s=0.1), asyncio.Event(), threading.Event()

    def rows() -> Iterator[dict[str, str]]:
        yield from ({"question": f"1 + {number}", "answer": str(1 + number)} for number in range(2))
        all_read.wait(30)  # the data has not ended, so the reserve runs dry, which is announced

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(supervisor.run(stop), name="supervisor")
        async with connect(settings, run="shown") as run:
            run.feed(rows(), reserve=1)
            # the two rows may come to work at once and fill two steps: a third is open then, without which no prompts are needed
            steps = run.steps(StepRequest(task="math", groups=1, n=2, over=4.0, ahead=2), timeout_s=30)
            first = asyncio.ensure_future(anext(aiter(steps)))
            for stage in Stage:
                worker = ManualWorker(scripts, stage)
                await wait_until(partial(has_entries, client, worker.stream, 2), f"work in {worker.stream}")
                seen["Stage streams"] |= fields_of(await entries(client, worker.stream))
                await work_by_hand(worker)
            await first
            broken, unwanted = await run.submit([JobRequest(task="math", prompt={"question": word}) for word in ("a", "b")])
            init = ManualWorker(scripts, Stage.INIT)
            held = {job.job: job for job in await init.take()}
            await init.give_up(held[broken.id], kind="dead", why="body: DamagedBody: by hand")
            await broken.result(timeout_s=20)
            await unwanted.cancel()
            stray = await ask(client, "XADD", init.stream, "*", "what", "no header of ours")
            await scripts.reject(keys.short(init.stream), Stage.INIT, stray.decode(), "no header of ours", b"what")
            all_read.set()
        # a note is dropped by the client that reads it: this one comes when there is none any more
        more = encode(Prompt(id="more", data={"question": "2"}))
        await StepScripts(client, keys).push_prompts("shown", run.incarnation, [("more", more)])
        await wait_until(partial(has_note, client, keys.results("shown")), "the note that prompts are needed")
        stop.set()
        await ask(client, "HSET", keys.run("shown"), "contact", 1)
        await RunScripts(client, keys).close_gone_runs(0, 1)
    results = await entries(client, keys.results("shown"))
    for kind, heading in HEADING_OF_KIND.items():
        seen[heading] = fields_of(fields for fields in results if fields["kind"] == kind)
    for heading, stream in (("Rewards", keys.reward), ("Cancels", keys.cancel), ("Dead letters", keys.dead)):
        seen[heading] = fields_of(await entries(client, stream))

    assert shown == seen


async def work_by_hand(worker: ManualWorker) -> None:
    """One round of a stage: what is there is handed on, or ended with another reward for each second member."""
    held = await worker.take()
    if worker.stage is not Stage.EVAL:
        await worker.hand_off(*held, body=encode(a_trajectory()))
        return
    for job in held:
        reward = 1.0 if job.job.endswith(".0") else 0.0
        await worker.settle(job, settlement=a_settlement(reward, stop=StopReason.FINISHED.value), body=encode(a_grade(reward)), kind="eval")


async def has_entries(client: AsyncClient, stream: str, count: int) -> bool:
    """Whether a stream has so many."""
    return int(await ask(client, "XLEN", stream)) >= count


async def has_note(client: AsyncClient, stream: str) -> bool:
    """Whether a trainer was told something."""
    return any(fields["kind"] == "note" for fields in await entries(client, stream))
