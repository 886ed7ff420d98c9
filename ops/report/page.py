"""The page of a report: text in, HTML out. One file without script, font, image or address; a policy in its head forbids all of them.

Everything that a run, a task, a grader or a model named goes through `visible_line` and `escape`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape

from ops.report.charts import bar_chart, line_chart, number, share_bar, shares_chart
from ops.report.facts import JUDGED, RunFacts, Spread, StepFacts, histogram, latencies, over_time, reasons, reward_by_step
from ops.run_view import SHORTAGE, ago
from ops.visible_text import visible_line
from pipeline.supervisor.monitors import Health
from pipeline.supervisor.token_fates import TokenFate

ROWS = 40
"""Steps that the table shows: the last. A page of a thousand rows is not read."""
STYLE = """
:root{--ink:#1c2430;--soft:#5b6676;--line:#d9dee6;--back:#fff;--card:#f6f8fa;--warn:#9a5b00;--warnback:#fff4df;
--c0:#2f6fb3;--c1:#c8642b;--c2:#4c9a5f;--c3:#8b5fb0;--c4:#b0902a;--c5:#3f9aa5;--c6:#b0486b;--c7:#7d8793}
@media (prefers-color-scheme:dark){:root{--ink:#e4e9f0;--soft:#9aa6b5;--line:#36404d;--back:#151a21;--card:#1e252e;--warn:#f0b95c;
--warnback:#3a2d14;
--c0:#6aa5e3;--c1:#e5925f;--c2:#7cc58f;--c3:#b692d6;--c4:#d8bb5e;--c5:#74c3cd;--c6:#de83a2;--c7:#a5afba}}
*{box-sizing:border-box}body{margin:0;background:var(--back);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1120px;margin:0 auto;padding:24px 20px 60px}h1{font-size:24px;margin:0;overflow-wrap:anywhere}
h2{font-size:17px;margin:34px 0 6px}
p{margin:4px 0 10px}.soft{color:var(--soft)}
.two{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,480px),1fr));gap:18px 28px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(140px,1fr));gap:10px;margin:18px 0}
.tile{background:var(--card);border-radius:8px;padding:10px 12px}
.tile b{display:block;font-size:21px;font-variant-numeric:tabular-nums}.tile span{color:var(--soft);font-size:13px}
svg{width:100%;height:auto;display:block}.grid{stroke:var(--line)}.tick,.label{fill:var(--soft);font-size:11px}
.line{fill:none;stroke-width:1.8}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:2px 16px;padding:0;margin:4px 0 0;font-size:13px;color:var(--soft)}
.key{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:6px}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:4px 14px 4px 0;border-bottom:1px solid var(--line);vertical-align:top}
th{font-weight:600;color:var(--soft)}
th:first-child,td:first-child,.text{text-align:left}.text{overflow-wrap:anywhere}
.warn{background:var(--warnback);color:var(--warn);border-radius:8px;padding:8px 12px;margin:6px 0}
"""
STYLE += "".join(
    f".line.c{n}{{stroke:var(--c{n})}}.fill.c{n},.dot.c{n}{{fill:var(--c{n})}}.key.c{n}{{background:var(--c{n})}}" for n in range(8)
)


def page(facts: RunFacts) -> str:
    """The whole page."""
    run = facts.report.look
    parts = [
        *_head(facts),
        *_tiles(facts),
        *_warnings(facts),
        *_throughput(facts),
        *_rewards(facts),
        *_tokens(facts),
        *_latencies(facts),
        *_monitors(facts),
        *_steps(facts),
        *_ends(facts),
    ]
    title = f"run {_safe(run.name)}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="referrer" content="no-referrer">'
        f"<title>{title}</title><style>{STYLE}</style></head>\n<body><main>\n" + "\n".join(parts) + "\n</main></body></html>\n"
    )


def _safe(text: object) -> str:
    return escape(visible_line(str(text)))


def _at(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def _head(facts: RunFacts) -> list[str]:
    run = facts.report.look
    moments = [group.closed_s for group in facts.groups] + [job.ended_s for job in facts.jobs[:1] + facts.jobs[-1:]]
    span = f" · {_at(min(moments))} to {_at(max(moments))}" if moments else ""
    source = f" and the export in {_safe(facts.export)}" if facts.export else ""
    return [
        f"<h1>run {_safe(run.name)}</h1>",
        f'<p class="soft">{_safe(run.state)} · trainer heard {ago(run.contact_s)} ago · incarnation {run.incarnation} · '
        f"version {_safe(run.version or 'not said')}{span}<br>As of {_at(facts.now_s)} UTC, from Redis{source}.</p>",
    ]


def _tiles(facts: RunFacts) -> list[str]:
    run = facts.report.look
    tokens = sum(run.tokens.values())
    judged = run.groups.get("informative", 0) + run.groups.get("filtered", 0)
    closed = sum(count for name, count in run.groups.items() if name not in ("launched", "given_up"))
    tiles = {
        "last step reached": f"{facts.steps[-1].index}" if facts.steps else "-",
        "groups with a verdict": number(closed),
        "jobs ended": number(sum(facts.jobs_counted.values())),
        "tokens sampled": number(tokens),
        "of them trained": f"{run.tokens.get(TokenFate.KEPT.value, 0) / tokens:.0%}" if tokens else "-",
        "groups filtered": f"{run.groups.get('filtered', 0) / judged:.0%}" if judged else "-",
    }
    return [
        '<div class="tiles">'
        + "".join(f'<div class="tile"><b>{_safe(value)}</b><span>{_safe(name)}</span></div>' for name, value in tiles.items())
        + "</div>"
    ]


def _warnings(facts: RunFacts) -> list[str]:
    found = list(facts.report.monitors.length.warnings)
    if facts.report.monitors.starvation.health is Health.WARN:
        found.append("The oldest open step has too little at work.")
    if facts.report.monitors.shortage:
        found.append("Now: " + SHORTAGE.get(facts.report.monitors.shortage, facts.report.monitors.shortage))
    return [f'<div class="warn">{_safe(sentence)}</div>' for sentence in found]


def _section(title: str, says: str, *charts: str) -> list[str]:
    """A heading, a sentence and charts side by side; nothing when there is nothing to show."""
    shown = [chart for chart in charts if chart]
    if not shown:
        return []
    return [
        f"<h2>{title}</h2>",
        f'<p class="soft">{says}</p>' if says else "",
        '<div class="two">' + "".join(f"<div>{chart}</div>" for chart in shown) + "</div>",
    ]


def _throughput(facts: RunFacts) -> list[str]:
    tokens = over_time((group.closed_s, float(group.sampled_tokens)) for group in facts.groups)
    groups = over_time((group.closed_s, 60.0) for group in facts.groups)
    charts = [
        line_chart({label: line}, x_label="time, UTC", y_label=label, x_ticks=_times(line)) if line else ""
        for label, line in (("sampled tokens / s", tokens), ("groups / min", groups))
    ]
    return _section("Throughput", "Of groups, at the moment of their verdict. Waits for the trainer count.", *charts)


def _times(line: Sequence[tuple[float, float]]) -> list[tuple[float, str]]:
    low, high = line[0][0], line[-1][0]
    pattern = "%m-%d" if high - low > 3 * 86_400 else "%d %H:%M" if high - low > 86_400 else "%H:%M" if high - low > 600 else "%H:%M:%S"
    return [
        (moment, datetime.fromtimestamp(moment, UTC).strftime(pattern)) for moment in (low + (high - low) * place / 4 for place in range(5))
    ]


def _rewards(facts: RunFacts) -> list[str]:
    judged, trained = reward_by_step(facts.groups, JUDGED), reward_by_step(facts.groups, frozenset(("informative",)))
    series = {
        name: [(float(step), mean) for step, mean in means.items()]
        for name, means in (("all judged groups", judged), ("trained groups", trained))
        if means
    }
    indices = sorted(judged)
    ticks = _indices(indices)
    by_step = line_chart(series, x_label="step", y_label="mean reward", x_ticks=ticks) if series else ""
    shares = {step.index: step.filtered_share for step in facts.steps}
    line = [(float(index), share) for index, share in shares.items() if share is not None]
    filtered = (
        line_chart({"filtered": line}, x_label="step", y_label="filtered share", x_ticks=_indices([int(x) for x, _ in line]), y_most=1.0)
        if line
        else ""
    )
    rewards = [job.reward for job in facts.jobs if job.reward is not None]
    bars = [(number(low), float(count), f"{number(low)} to {number(high)}: {count:,} jobs") for low, high, count in histogram(rewards)]
    hist = bar_chart(bars, x_label="reward", y_label="jobs")
    says = "A group is filtered when its members' rewards do not differ. Jobs: of those whose records are left."
    return _section("Reward", says, by_step, filtered, hist)


def _indices(indices: Sequence[int]) -> list[tuple[float, str]]:
    if not indices:
        return []
    picked = sorted({indices[round(place * (len(indices) - 1) / 6)] for place in range(7)})
    return [(float(index), str(index)) for index in picked]


def _tokens(facts: RunFacts) -> list[str]:
    names = [fate.value for fate in TokenFate if any(step.tokens.get(fate.value) for step in facts.steps)]
    rows = [(str(step.index), {name: float(step.tokens.get(name, 0)) for name in names}) for step in facts.steps[-60:]]
    by_step = shares_chart(rows, names, y_label="share of sampled tokens", x_label="step")
    whole = share_bar({name: float(count) for name, count in facts.report.look.tokens.items()})
    return _section(
        "Where the tokens went", "<b>kept</b> were trained on; the rest is what filtering, cancelling and failures cost.", whole, by_step
    )


def _latencies(facts: RunFacts) -> list[str]:
    found = latencies(facts.jobs)
    if not found:
        words = (
            "No records of single jobs are left: they go with the ack. Export before it, and name the folder with <code>--export</code>."
        )
        return ["<h2>Time of a job</h2>", f'<p class="soft">{words}</p>']
    rows = [[name, f"{one.count:,}", *(_seconds(value) for value in (one.p50, one.p90, one.p99, one.most))] for name, one in found.items()]
    medians = [(name, one.p50, _says(name, one)) for name, one in found.items() if name != "accepted to ended"]
    chart = bar_chart(medians, x_label="place", y_label="median, seconds")
    table = _table(["", "jobs", "p50", "p90", "p99", "longest"], rows)
    return _section("Time of a job", "Jobs that ended by themselves; waits hold queues, retries and model servers.", table, chart)


def _says(name: str, one: Spread) -> str:
    return f"{name}: median {_seconds(one.p50)}, p99 {_seconds(one.p99)}"


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s" if value < 120 else f"{value / 60:.1f} min"


def _monitors(facts: RunFacts) -> list[str]:
    length, starvation = facts.report.monitors.length, facts.report.monitors.starvation
    parts = ["<h2>Does training see what was sampled?</h2>"]
    if length.health is Health.UNKNOWN:
        parts.append(f'<p class="soft">Too few members were judged to say: {length.judged_members}.</p>')
    else:
        rows = [
            ["mean tokens", number(length.sampled_mean), number(length.judged_mean), number(length.trained_mean)],
            ["mean against the one before", "", f"{length.cut_ratio:.2f}", f"{length.filter_ratio:.2f}"],
            [
                f"share of the longest ({number(length.tail_length)} tokens on) against the one before",
                "",
                f"{length.cut_tail:.2f}",
                f"{length.filter_tail:.2f}",
            ],
            ["age, s", "", f"{length.judged_age_s:.0f}", f"{length.trained_age_s:.0f}"],
            ["age, versions", "", f"{length.judged_age_versions:.1f}", f"{length.trained_age_versions:.1f}"],
        ]
        health = "healthy" if length.health is Health.OK else "see above"
        parts.append(
            f'<p class="soft">Length monitor over the last {length.groups:,} groups: {health}. What cancelling takes must be near 1.</p>'
        )
        parts.append(_table(["", "sampled", "judged", "trained"], rows))
    starved = [(str(step.index), step.starved_share, f"step {step.index}: {step.starved_share:.0%}") for step in facts.steps[-60:]]
    if any(share for _, share, _ in starved):
        parts.append('<h2>Did the fleet wait for work?</h2><p class="soft">Share of each step in which too little was at work.</p>')
        parts.append('<div class="two"><div>' + bar_chart(starved, x_label="step", y_label="share of the step") + "</div></div>")
    if starvation.short_s:
        words = ", ".join(f"{_safe(why)} {_seconds(seconds)}" for why, seconds in starvation.short_s.items())
        parts.append(f'<p class="soft">The open step so far: {words}.</p>')
    return parts


def _steps(facts: RunFacts) -> list[str]:
    if not facts.steps:
        return []
    rows = [_step_row(step) for step in reversed(facts.steps[-ROWS:])]
    names = ["step", "groups", "filtered", "dropped", "tokens kept", "took", "starved", "cancels settled"]
    left = f" The last {ROWS} of {len(facts.steps):,}." if len(facts.steps) > ROWS else ""
    return ["<h2>Steps</h2>", f'<p class="soft">{left.strip()}</p>' if left else "", _table(names, rows)]


def _step_row(step: StepFacts) -> list[str]:
    tokens = sum(step.tokens.values())
    return [
        str(step.index),
        f"{step.accepted}/{step.target}{' short' if step.is_short else ''}",
        str(step.counts.get("filtered", 0)),
        str(step.counts.get("dropped", 0) + step.counts.get("dead", 0)),
        f"{step.tokens.get('kept', 0) / tokens:.0%}" if tokens else "-",
        _seconds(step.took_s) if step.took_s is not None else "-",
        f"{step.starved_share:.0%}",
        _seconds(step.cancel_settled_s) if step.cancel_settled_s is not None else "-",
    ]


def _ends(facts: RunFacts) -> list[str]:
    parts = []
    if facts.jobs_counted:
        parts += ["<h2>How jobs ended</h2>", share_bar({name: float(count) for name, count in facts.jobs_counted.items()})]
    if found := reasons(facts.jobs):
        rows = [[outcome, reason[:300] or "-", f"{count:,}"] for outcome, reason, count in found]
        parts.append('<p class="soft">Why, of those whose records are left.</p>')
        parts.append(_table(["outcome", "reason", "jobs"], rows, text=(1,)))
    return parts


def _table(names: Sequence[str], rows: Iterable[Sequence[str]], *, text: Sequence[int] = ()) -> str:
    def cells(tag: str, values: Sequence[str]) -> str:
        return "".join(
            f'<{tag} class="text">{_safe(value)}</{tag}>' if at in text else f"<{tag}>{_safe(value)}</{tag}>"
            for at, value in enumerate(values)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{cells("th", names)}</tr></thead><tbody>{body}</tbody></table></div>'


__all__ = ["page"]
