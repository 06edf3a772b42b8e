"""A run's figures in MLflow or Weights & Biases, by the setting ``tracker``; the server's process alone speaks to them.

They get what the report holds and no more: settings, figures over clients for every round, the closing figures, and the
pictures of ``server_app.pictures`` (which name clients, as the report does). No report, checkpoint, log, code, host name or
machine load is sent; neither library's own telemetry is on. Our own choices where the user has not set the libraries' own
environment variables: MLflow writes into ``mlruns`` of the run's folder (``MLFLOW_TRACKING_URI`` leads elsewhere), and W&B
stays offline, in ``wandb`` there, unless ``WANDB_API_KEY`` or ``WANDB_MODE`` says otherwise, since it would else ask
for a login that nobody sees.

A tracker that fails while the run goes on is left out from then on, with a warning: training is not its hostage.
"""

from __future__ import annotations

import io
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from server_app.durable import replacing
from strategies.config import ConfigError, Scalar

log = logging.getLogger(__name__)
PACKAGES = {"mlflow": "mlflow-skinny", "wandb": "wandb"}
NOTED = "tracker.json"  # the tracker's own name of the run, so that a resumed run goes on in it
PROJECT = "fedhearth"
PARAMS_AT_ONCE = 100  # MLflow takes no more


class Tracker(Protocol):
    """Where figures go. ``step`` is the round whose end they describe; it never falls."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None: ...
    def image(self, step: int, name: str, png: bytes) -> None: ...
    def summary(self, values: Mapping[str, float]) -> None: ...
    def close(self, finished: bool) -> None: ...


def check_tracker(name: str) -> None:
    """Raise ``ConfigError`` if the tracker is not installed."""
    if name != "none" and find_spec(name) is None:
        raise ConfigError(f"tracker = {name!r} needs the package {PACKAGES[name]}, which is not installed here: "
                          "pip install 'fedhearth[trackers]', or set tracker=none (FH-042)")


def open_tracker(name: str, folder: Path, settings: Mapping[str, Scalar], resumed: bool) -> Tracker | None:
    """The tracker called ``name`` for the run in ``folder``, None for ``none``.

    Raises
    ------
    ConfigError
        If it is not installed, or does not open.
    """
    if name == "none":
        return None
    check_tracker(name)
    try:
        opened: Tracker = {"mlflow": Mlflow, "wandb": Wandb}[name](folder, settings, _noted(folder, name) if resumed else "")
    except Exception as error:  # noqa: BLE001  (the libraries raise kinds of their own, and have to be imported to name them)
        raise ConfigError(f"tracker = {name!r} does not open ({type(error).__name__}: {' '.join(str(error).split())[:300]}); mend that, or "
                          "set tracker=none, and go on with --resume (FH-043)") from None
    return Patient(opened, name)


class Patient:
    """Hands on to a tracker until it fails once."""

    def __init__(self, tracker: Tracker, name: str) -> None:
        self._tracker: Tracker | None = tracker
        self._name = name

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._tried(lambda to: to.scalars(step, values))

    def image(self, step: int, name: str, png: bytes) -> None:
        self._tried(lambda to: to.image(step, name, png))

    def summary(self, values: Mapping[str, float]) -> None:
        self._tried(lambda to: to.summary(values))

    def close(self, finished: bool) -> None:
        self._tried(lambda to: to.close(finished))

    def _tried(self, call: Callable[[Tracker], None]) -> None:
        if self._tracker is None:
            return
        try:
            call(self._tracker)
        except Exception as error:  # noqa: BLE001  (as above)
            self._tracker = None
            log.warning("%s failed (%s: %s) and gets nothing more; the run goes on, and its own files have everything", self._name,
                        type(error).__name__, " ".join(str(error).split())[:300])


class Mlflow:
    """MLflow, by its client alone: its global state stays untouched."""

    def __init__(self, folder: Path, settings: Mapping[str, Scalar], noted: str) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        # since 3.7 it wants to be told that files, not a database, are meant
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow.tracking import MlflowClient  # type: ignore[import-not-found]

        self._client: Any = MlflowClient(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or (folder / "mlruns").as_uri())
        if noted:
            self._run = noted
            self._client.update_run(noted, status="RUNNING")
            return
        found = self._client.get_experiment_by_name(PROJECT)
        number = found.experiment_id if found else self._client.create_experiment(PROJECT)
        self._run = self._client.create_run(number, run_name=folder.name, tags={"method": str(settings["method"])}).info.run_id
        _note(folder, "mlflow", self._run)
        self._params(settings)

    def _params(self, settings: Mapping[str, Scalar]) -> None:
        from mlflow.entities import Param  # type: ignore[import-not-found]

        params = [Param(key, str(value)) for key, value in settings.items()]
        for start in range(0, len(params), PARAMS_AT_ONCE):
            self._client.log_batch(self._run, params=params[start:start + PARAMS_AT_ONCE])

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric  # type: ignore[import-not-found]

        now = int(time.time() * 1000)
        self._client.log_batch(self._run, metrics=[Metric(name, float(value), now, step) for name, value in values.items()])

    def image(self, step: int, name: str, png: bytes) -> None:
        with tempfile.TemporaryDirectory() as place:
            file = Path(place, f"{name.replace('/', '-')}-{step:05d}.png")
            file.write_bytes(png)
            self._client.log_artifact(self._run, str(file), "images")

    def summary(self, values: Mapping[str, float]) -> None:
        self.scalars(0, {f"final/{name}": value for name, value in values.items()})

    def close(self, finished: bool) -> None:
        self._client.set_terminated(self._run, "FINISHED" if finished else "FAILED")


class Wandb:
    """Weights & Biases."""

    def __init__(self, folder: Path, settings: Mapping[str, Scalar], noted: str) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb  # type: ignore[import-not-found]

        self._wandb: Any = wandb
        mode = os.environ.get("WANDB_MODE") or ("online" if os.environ.get("WANDB_API_KEY") else "offline")
        quiet = wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True, save_code=False, x_disable_stats=True,
                               x_disable_meta=True)
        self._run: Any = wandb.init(project=os.environ.get("WANDB_PROJECT", PROJECT), name=folder.name, id=noted or None, resume="allow",
                                    mode=mode, dir=str(folder), config=dict(settings), settings=quiet)
        _note(folder, "wandb", self._run.id)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def image(self, step: int, name: str, png: bytes) -> None:
        from PIL import Image

        with Image.open(io.BytesIO(png)) as picture:
            self._run.log({name: self._wandb.Image(picture)}, step=step)

    def summary(self, values: Mapping[str, float]) -> None:
        self._run.summary.update({f"final/{name}": value for name, value in values.items()})

    def close(self, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)


def _noted(folder: Path, name: str) -> str:
    """The tracker's own name of the run that is resumed, "" if it has none."""
    try:
        return str(json.loads((folder / NOTED).read_text(encoding="utf-8")).get(name, ""))
    except (OSError, ValueError, AttributeError):
        return ""


def _note(folder: Path, name: str, run: str) -> None:
    with replacing(folder / NOTED, durable=False) as part:
        part.write_text(json.dumps({name: run}), encoding="utf-8")
