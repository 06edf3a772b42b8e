"""``fedhearth status --watch``: the same, kept up to date; a full terminal, or, where none can be drawn, a block of plain text a look."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from deploy.live import drawable
from deploy.status import View, headline, page, sites
from strategies.data_warnings import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

# words say it too; colour only helps to find it from across the room
STYLES = {"online": "bold green", "offline": "bold red"}


def watch(view: View, again: Callable[[View], View], every: float, sleep: Callable[[float], None] = time.sleep) -> int:
    """Show ``view`` and what ``again`` makes of it every so many seconds, until Ctrl-C, which is the normal end: 0."""
    try:
        if drawable():
            _on_terminal(view, again, every, sleep)
        else:
            while True:
                print(f"--- {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC\n{page(view, datetime.now(UTC))}", end="", flush=True)
                sleep(every)
                view = again(view)
    except KeyboardInterrupt:
        pass
    return 0


def _on_terminal(view: View, again: Callable[[View], View], every: float, sleep: Callable[[float], None]) -> None:
    from rich.console import Console
    from rich.live import Live

    console, shown = Console(), [view]
    # drawn every half second whatever `every` is, so that the deadline counts down
    with Live(get_renderable=lambda: panel(shown[0], datetime.now(UTC)), refresh_per_second=2, screen=True, console=console) as live:
        while True:
            live.refresh()
            sleep(every)
            shown[0] = again(shown[0])


def panel(view: View, now: datetime) -> RenderableType:
    """The run, how far its rounds are, and every site."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    table = Table("site", "status", "last seen", "served accuracy", "last lost reply", expand=True)
    for site in sites(view, now):
        table.add_row(site.name, Text(site.status, STYLES.get(site.status, "")), site.seen, site.served,
                      Text(site.lost, "" if site.lost == "-" else "yellow"))
    parts: list[RenderableType] = [Text(headline(view, now.timestamp()), "bold")]
    if at := view.progress:
        parts.append(ProgressBar(total=max(1, at.rounds), completed=at.rounds if at.closing else at.round - 1))
    online = sum(node.online for node in view.nodes)
    parts += [Text(f"{online} of {counted(len(view.nodes), 'site')} online"), table]
    parts.append(Text(f"fedhearth: {view.fault}", "bold red") if view.fault else Text("Ctrl-C ends the watching, not the run", "dim"))
    return Group(*parts)
