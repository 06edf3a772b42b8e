"""The ClientApp that an actor of the Ray engine runs: it opens a bundle and lets the clients' own app answer each message."""

from __future__ import annotations

from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from client_app.main import app as clients
from deploy.bundles import bundled_replies, opened
from deploy.virtual_nodes import answer

app = ClientApp()


@app.query("bundle")
def bundle(message: Message, context: Context) -> Message:
    """The replies of the clients that the bundle asks. Each has passed the guard of the clients' own app."""
    config: dict[str, Any] = dict(context.run_config)
    replies = [answer(clients, asked, config, int(config["clients"])) for asked in opened(message)]
    return Message(bundled_replies(replies), reply_to=message)
