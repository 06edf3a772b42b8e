"""The in-process engine for a single client with data of its own: how ``fedhearth join`` speaks to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deploy.inprocess import InProcessGrid, load
from deploy.virtual_nodes import answer


class OneSite(InProcessGrid):
    """The in-process grid with a single client, which has data of its own."""

    def __init__(self, run_config: Mapping[str, Any], node_config: Mapping[str, Any]) -> None:
        super().__init__(run_config, clients=1)
        self._node_config = dict(node_config)

    def _answer(self, message: Any) -> Any:
        if isinstance(self._app, str):
            self._app = load(self._app)
        return answer(self._app, message, self._run_config, self.clients, self._node_config)
