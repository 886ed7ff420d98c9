"""What a deterministic job's seeds and server depend on, and what not."""

from __future__ import annotations

from dataclasses import replace

from pipeline.testing import a_job, a_template
from workers.agent.seeds import call_seed, server_pin

REPEATS = a_template(deterministic=True, run_seed=7)


def test_seeds_of_a_deterministic_job_do_not_know_the_draw_the_attempt_or_the_run() -> None:
    """How often a prompt was given up, or its worker died, depends on time."""
    job = a_job("run1", template=REPEATS)
    other = replace(a_job("run2", template=REPEATS), draw=5, attempt=9)

    assert call_seed(other, 2) == call_seed(job, 2)
    assert server_pin(other) == server_pin(job)


def test_they_differ_by_member_turn_prompt_and_run_seed() -> None:
    jobs = [a_job(prompt=prompt, member=member, template=REPEATS) for prompt in ("e0-1", "e1-1") for member in range(3)]
    jobs += [a_job(template=replace(REPEATS, run_seed=8))]
    seeds = [call_seed(job, turn, part) for job in jobs for turn in range(2) for part in range(2)]

    assert len(set(seeds)) == len(seeds)


def test_other_jobs_are_drawn_anew_and_have_no_server_of_their_own() -> None:
    job = a_job()

    assert call_seed(replace(job, draw=1), 0) != call_seed(job, 0)
    assert server_pin(job) is None


def test_pins_spread_over_servers_and_are_exact_in_lua() -> None:
    pins = [server_pin(a_job(prompt=f"e0-{prompt}", member=member, template=REPEATS)) for prompt in range(50) for member in range(8)]

    assert all(pin is not None and 0 <= pin < 2**31 for pin in pins)
    for servers in (2, 3, 5):
        counts = [sum(pin % servers == at for pin in pins if pin is not None) for at in range(servers)]
        assert min(counts) > 0.6 * len(pins) / servers
