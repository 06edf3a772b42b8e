"""The ServerApp: parse the run config, meet the clients, run the rounds, write the results.

The same function serves every engine: Flower calls it with a Ray or a gRPC grid, the in-process engine with its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from server_app.donor_swap import check_can_swap, closing_swap
from server_app.initial import initial_model
from server_app.memory import give_back_freed_memory
from server_app.record import RunRecorder, held_out_before, note_held_out, open_run
from server_app.roster import Roster
from server_app.rounds import OnReply, Plan, RunFailed, run_rounds
from server_app.watch import Watch, watched
from strategies.adapter import RuleStrategy, strategy_of
from strategies.config import ConfigError
from strategies.registry import Settings, items_of_all, parse_run_config

log = logging.getLogger(__name__)
app = ServerApp()
HELLO_WAIT = 300.0
# a node that crashed is listed for another minute; what was sent to it is lost, and it must be asked once more
HELLO_DEADLINE = 120.0
# a simulation opens the data of all its clients at their hello, a few at a time, and there may be thousands
HELLO_OF_SIMULATED = 1.0


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Flower's entry point."""
    give_back_freed_memory()
    serve(grid, context, engine="ray" if type(grid).__name__ == "InMemoryGrid" else "grpc")


def serve(grid: Grid, context: Context, engine: str, on_reply: OnReply | None = None,
          on_round: Callable[[dict[str, Any]], None] | None = None) -> dict[str, Any]:
    """One whole run, from hello to report. Returns the summary.

    Raises
    ------
    ConfigError, RunFailed
        With what was expected, what came and what to do, before round 1 wherever that can be known.
    """
    settings = parse_run_config(context.run_config)
    if settings.run.cohort > 1 and engine != "inprocess":
        raise ConfigError(f"cohort = {settings.run.cohort} trains clients at once, and only the in-process engine (fedhearth run) has "
                          "several at hand; set cohort = 1 here")
    check_can_swap(settings)
    with watched(settings.run) as watch:

        def reply(number: int, replied: int, asked: int) -> None:
            watch.reply(number, replied, asked)
            if on_reply:
                on_reply(number, replied, asked)

        return _serve(grid, settings, engine, watch, reply, on_round)


def _serve(grid: Grid, settings: Settings, engine: str, watch: Watch, on_reply: OnReply,
           on_round: Callable[[dict[str, Any]], None] | None) -> dict[str, Any]:
    run = settings.run
    flat = items_of_all(settings)
    folder = open_run(settings, flat)
    watch.into(folder, flat)
    roster = Roster(run.seed, run.fraction)
    more = 0.0 if engine == "grpc" else HELLO_OF_SIMULATED * run.clients
    roster.gather(grid, run.clients, wait=HELLO_WAIT + more, deadline=min(run.deadline, HELLO_DEADLINE) + more)
    note_held_out(folder, roster.hold_out(run.held_out_count, held_out_before(folder)))
    hello = roster.hellos[roster.names()[0]]
    start = initial_model(settings, hello.classes, hello.input_shape)
    recorder = RunRecorder(folder, settings, flat, engine, roster)
    strategy = strategy_of(settings, start, recorder.shelf, roster)
    del start
    done = recorder.resume(strategy) if run.resume else 0
    if done == run.rounds:
        _check_trained(strategy, done)
    plan = Plan(run.rounds, run.deadline, run.quorum, run.max_void_rounds, done)

    def after_round(outcome: Any) -> None:
        record = recorder.after_round(strategy, outcome)
        if outcome.number == run.rounds:
            _check_trained(strategy, run.rounds)
        watch.round(record)
        roster.refresh(grid, min(run.deadline, HELLO_DEADLINE))
        watch.begins(outcome.number + 1, roster.online())
        if on_round:
            on_round(record)

    def after(noted: Callable[[RuleStrategy, Any], None]) -> Callable[[Any], None]:
        def exchange(outcome: Any) -> None:
            noted(strategy, outcome)
            watch.exchange(strategy.tally.record())

        return exchange

    def after_evaluate(outcome: Any) -> None:
        after(recorder.after_evaluate)(outcome)
        if outcome.number == run.rounds:
            _check_closed(outcome)

    watch.begins(done + 1, roster.online())
    run_rounds(grid, strategy, ArrayRecord(), plan, after_round, after_evaluate, on_reply, after(recorder.after_join))
    if run.donor_swap:
        closing_swap(grid, strategy, plan, folder, lambda: roster.refresh(grid, min(run.deadline, HELLO_DEADLINE)))
    summary = recorder.finish(strategy)
    watch.finished(summary)
    log.info("results in %s", folder)
    return summary


def _check_closed(outcome: Any) -> None:
    """A closing evaluation that nobody answers leaves no result, whatever was trained."""
    if not outcome.replied:
        raise RunFailed(f"none of the {outcome.asked} clients that were asked for the closing evaluation gave a good reply. The "
                        "reasons are in the log above; what was trained is kept, and resuming the run asks them again")


def _check_trained(strategy: RuleStrategy, rounds: int) -> None:
    """A short run can be over before ``max-void-rounds`` ends it; an initial model must not pass for a result."""
    if not strategy.acked:
        raise RunFailed(f"after {rounds} rounds no client has a trained model: no round had enough good replies (quorum "
                        f"{strategy.run.quorum:g}), or the clients have lost their state since. The reasons are in the log above")
