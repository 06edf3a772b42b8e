"""What is deployed but cannot be run here: read by the real parsers, and held to what we rely on.

Every ``fedhearth`` command in a unit, a manifest or the RUNBOOK goes through the real argument parser, and every error
message that the RUNBOOK explains is looked for in the code.
"""

from __future__ import annotations

import ast
import configparser
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.cli import parser

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
RUNBOOK = (DEPLOY / "RUNBOOK.md").read_text(encoding="utf-8")
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
PACKAGES = {"server_app", "client_app", "strategies", "models", "deploy"}


def understood(words: list[str]) -> Any:
    """The command's options, as ``fedhearth`` would parse ``words``."""
    try:
        return parser(words[0]).parse_args(words)
    except SystemExit:
        pytest.fail(f"fedhearth does not understand: {shlex.join(words)}")


# --- systemd


def unit(path: Path) -> configparser.ConfigParser:
    found = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",), comment_prefixes=("#",))
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read_string(path.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_are_unprivileged_bounded_and_come_back(path: Path) -> None:
    service = unit(path)["Service"]
    assert service["User"] == "fedhearth" and service["NoNewPrivileges"] == "yes" and service["CapabilityBoundingSet"] == ""
    assert service["ProtectSystem"] == "strict" and service["ProtectHome"] == "yes" and "/etc/fedhearth" in service["ReadOnlyPaths"]
    assert service["Restart"] == "always" and int(service["RestartSec"]) >= 10 and unit(path)["Unit"]["StartLimitIntervalSec"] == "0"
    assert service["MemoryMax"] and int(service["TimeoutStopSec"]) > 17, "`fedhearth` itself takes up to 17 s to end its children"
    assert service["StateDirectoryMode"] == "0700" and service["UMask"] == "0077"


def test_a_sites_data_are_read_only() -> None:
    assert "-/srv/fedhearth/%i" in unit(DEPLOY / "systemd" / "fedhearth-supernode@.service")["Service"]["ReadOnlyPaths"].split()


def test_a_reload_of_the_server_is_the_signal_that_reads_the_keys_again() -> None:
    assert unit(DEPLOY / "systemd" / "fedhearth-superlink.service")["Service"]["ExecReload"] == "/bin/kill -HUP $MAINPID"


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_start_commands_that_exist_with_the_settings_of_their_example(path: Path) -> None:
    service = unit(path)["Service"]
    example = DEPLOY / "systemd" / ("superlink.env.example" if "superlink" in path.name else "supernode.env.example")
    settings = dict(line.split("=", 1) for line in example.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#"))
    command = service["ExecStart"]
    assert set(re.findall(r"\$\{?(\w+)", command)) == set(settings), "each setting is used, and each that is used has an example"
    words = [word.replace("%i", "north") for word in shlex.split(command)]
    # as systemd does: ${X} stays one word, $X is split
    filled = [settings[word[2:-1]] if word.startswith("${") else word for word in words if not re.fullmatch(r"\$\w+", word)]
    options = understood(filled[1:])
    if "superlink" in path.name:
        assert options.fleet.endswith(":9092") and options.port == 8000 and not options.insecure
    else:
        assert options.site == "north" and options.threads == 4 and str(options.state_dir) == "/var/lib/fedhearth/sites/north"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_itself_accepts_the_units(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / path.name
    # it insists on a command that is there
    copy.write_text(path.read_text(encoding="utf-8").replace("/opt/fedhearth/bin/fedhearth", "/bin/true"), encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


# --- containers


def test_the_image_is_built_from_any_base_and_runs_as_nobody_in_particular() -> None:
    dockerfile_parse = pytest.importorskip("dockerfile_parse")
    with (DEPLOY / "Dockerfile").open("rb") as file:
        image = dockerfile_parse.DockerfileParser(fileobj=file)
        steps = [(step["instruction"], step["value"]) for step in image.structure if step["instruction"] != "COMMENT"]
    named = [name for name, _ in steps]
    assert steps[0] == ("ARG", "BASE=python:3.12-slim") and steps[1] == ("FROM", "${BASE}") and named.count("FROM") == 1
    assert "ADD" not in named and ("ENTRYPOINT", '["fedhearth"]') in steps
    assert ("USER", "${UID}") in steps and named.index("USER") > max(i for i, name in enumerate(named) if name == "RUN")
    assert [value for name, value in steps if name == "EXPOSE"] == ["9092"], "the Control port is never published"
    copied = {source for name, value in steps if name == "COPY" for source in value.split()[:-1]}
    assert copied == PACKAGES | {"pyproject.toml", "README.md", "LICENSE"}
    ignore = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in ignore and {line[1:] for line in ignore if line.startswith("!")} == copied
    assert "TORCH_INDEX" in "".join(value for name, value in steps if name == "RUN")


def compose() -> dict[str, Any]:
    text = (DEPLOY / "compose.yml").read_text(encoding="utf-8")
    # ${NAME:-value}, as compose fills it in where NAME is not set
    return yaml.safe_load(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text))


@pytest.mark.parametrize("name", ["superlink", "supernode", "supernode-gpu"])
def test_compose_services_are_confined_and_start_commands_that_exist(name: str) -> None:
    service = compose()["services"][name]
    assert service["read_only"] and service["cap_drop"] == ["ALL"] and service["security_opt"] == ["no-new-privileges:true"]
    assert service["user"] == "10001:10001" and service["restart"] == "unless-stopped" and service["mem_limit"] and service["profiles"]
    assert (ROOT / "deploy" / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    options = understood(service["command"])
    mounts = {path.split(":")[1]: path.endswith(":ro") for path in service["volumes"]}
    assert [path for path, fixed in mounts.items() if not fixed] == ["/state"], "all else is read-only"
    if name == "superlink":
        assert service["ports"] == ["9092:9092"] and options.fleet == "0.0.0.0:9092" and options.authorize == ["/keys/*.pub"]
        assert all(str(options.certs / name) in mounts for name in ("ca.crt", "server.pem", "server.key")) and "/keys" in mounts
    else:
        assert {str(options.ca), str(options.key), "/data"} <= mounts.keys()
        assert "ports" not in service and str(options.state_dir) == "/state"


def test_a_gpu_is_asked_for_by_one_service_alone() -> None:
    services = compose()["services"]
    asked = {name for name, service in services.items() if "devices" in str(service.get("deploy"))}
    assert asked == {"supernode-gpu"} and set(compose()["volumes"]) == {"server-state", "site-state"}


def manifests() -> Iterator[dict[str, Any]]:
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")):
        yield from yaml.safe_load_all(path.read_text(encoding="utf-8"))


def of_kind(kind: str) -> dict[str, dict[str, Any]]:
    return {item["metadata"]["name"]: item["spec"] for item in manifests() if item["kind"] == kind}


def test_manifests_have_what_every_object_needs() -> None:
    version = {"Namespace": "v1", "Service": "v1", "StatefulSet": "apps/v1", "NetworkPolicy": "networking.k8s.io/v1"}
    for item in manifests():
        assert item["apiVersion"] == version[item["kind"]] and item["metadata"]["name"]
        assert item["kind"] == "Namespace" or item["metadata"]["namespace"] == "fedhearth"


@pytest.mark.parametrize("name", ["fedhearth-superlink", "fedhearth-north"])
def test_pods_are_single_confined_and_start_commands_that_exist(name: str) -> None:
    spec = of_kind("StatefulSet")[name]
    pod = spec["template"]["spec"]
    box, = pod["containers"]
    assert spec["replicas"] == 1 and spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    assert pod["automountServiceAccountToken"] is False and pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    assert box["securityContext"] == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert box["resources"]["limits"]["memory"] and pod["terminationGracePeriodSeconds"] > 17
    volumes = {v["name"] for v in pod["volumes"]} | {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]}
    mounts = {mount["mountPath"]: mount for mount in box["volumeMounts"]}
    assert {mount["name"] for mount in mounts.values()} == volumes
    writable = {path for path, mount in mounts.items() if not mount.get("readOnly")}
    assert writable == {"/state", "/tmp"}
    options = understood(box["args"])
    assert str(options.state_dir) == "/state" and not options.insecure


def test_the_cluster_publishes_the_fleet_port_alone() -> None:
    service, = of_kind("Service").values()
    box, = of_kind("StatefulSet")["fedhearth-superlink"]["template"]["spec"]["containers"]
    assert [port["port"] for port in service["ports"]] == [9092] == [port["containerPort"] for port in box["ports"]]
    labels = of_kind("StatefulSet")["fedhearth-superlink"]["template"]["metadata"]["labels"]
    assert service["selector"].items() <= labels.items()
    policies = of_kind("NetworkPolicy")
    server, site = policies["fedhearth-superlink"], policies["fedhearth-supernode"]
    assert [port["port"] for rule in server["ingress"] for port in rule["ports"]] == [9092] and server["egress"] == []
    assert site["ingress"] == [] and {port["port"] for rule in site["egress"] for port in rule["ports"]} == {9092, 53}
    assert site["podSelector"]["matchLabels"].items() <= of_kind("StatefulSet")["fedhearth-north"]["template"]["metadata"]["labels"].items()


# --- the RUNBOOK


def commands(line: str) -> Iterator[list[str]]:
    """The words after each ``fedhearth`` that a shell would run in ``line``."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set("&|;<>"):
            found = [i for i, each in enumerate(words) if each == "fedhearth" or each.endswith("/fedhearth")]
            # in `sudo -u fedhearth .../fedhearth` the last one is the command
            before = words[:found[-1]] if found else [""]
            if "exec" in before or all(re.match(r"\w+=|sudo$|-u$|fedhearth$", word) for word in before):
                yield words[found[-1] + 1:]
            words = []
        else:
            words.append(word)


def quoted_commands() -> list[list[str]]:
    blocks = re.findall(r"^ *```bash\n(.*?)^ *```", RUNBOOK, re.M | re.S)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    # in the text, a command without options only names itself
    inline = re.findall(r"`(fedhearth [^`]* -[^`]*)`", re.sub(r"```.*?```", "", RUNBOOK, flags=re.S).replace("\n", " "))
    return [words for line in [*lines, *inline] for words in commands(line.strip())]


QUOTED = quoted_commands()


def test_commands_are_found_in_what_a_shell_reads() -> None:
    assert list(commands("cd /x && sudo -u fedhearth /opt/fedhearth/bin/fedhearth status --quiet & # now")) == [["status", "--quiet"]]
    assert list(commands("chown fedhearth: /etc/fedhearth/certs && fedhearth stop")) == [["stop"]]
    assert list(commands("A=1 docker compose exec superlink fedhearth submit -c rounds=3")) == [["submit", "-c", "rounds=3"]]
    assert not list(commands("useradd --system fedhearth")) and not list(commands("# fedhearth nothing"))
    assert {words[0] for words in QUOTED} >= {"certs", "superlink", "supernode", "submit", "status", "doctor"} and len(QUOTED) >= 15


@pytest.mark.parametrize("words", QUOTED, ids=shlex.join)
def test_every_command_of_the_runbook_is_understood(words: list[str]) -> None:
    understood(words)


def test_the_first_deployment_takes_at_most_eight_commands() -> None:
    section = RUNBOOK.split("## First deployment")[1].split("\n## ")[0]
    block, = re.findall(r"```bash\n(.*?)```", section, re.S)
    assert 1 <= len([line for line in block.splitlines() if line.strip()]) <= 8


@cache
def texts() -> tuple[str, ...]:
    """Every piece of text in our code, and in the files of Flower whose messages we quote."""
    flower = Path(find_spec("flwr").submodule_search_locations[0])  # type: ignore[union-attr,index]
    fleet = flower / "server/superlink/fleet/grpc_rere"
    theirs = [flower / "supercore/error/catalog.py", fleet / "node_auth_server_interceptor.py", fleet / "fleet_servicer.py"]
    ours = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return tuple(node.value for path in (*ours, *theirs) for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
                 if isinstance(node, ast.Constant) and isinstance(node.value, str))


def explained() -> list[str]:
    table = RUNBOOK.split("## What each error means")[1].split("\n## ")[0]
    rows = [line.split("|")[2] for line in table.splitlines() if line.startswith(("| FH-", "| – "))]
    return [message for cell in rows for message in re.findall(r"`([^`]+)`", cell)]


@pytest.mark.parametrize("message", explained())
def test_every_message_that_is_explained_can_still_occur(message: str) -> None:
    assert any(message in text for text in texts()), "no code says this any more"


def test_links_lead_to_headings() -> None:
    headings = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.+)$", RUNBOOK, re.M)}
    assert not [target for target in re.findall(r"\]\(#([^)]+)\)", RUNBOOK) if target not in headings]


@pytest.mark.parametrize("path", re.findall(r"deploy/[\w./@-]+\w", RUNBOOK))
def test_files_that_are_named_exist(path: str) -> None:
    assert (ROOT / path).exists()
