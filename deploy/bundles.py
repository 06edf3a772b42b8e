"""Several clients' messages in one of Flower's, and their replies in one reply.

Flower's simulation takes a message at a time: it looks for a node's next one every 0.1 s, among the messages of all nodes, and
hands each to an actor by itself. With thousands of clients that search alone takes longer than training. So on Ray a few nodes
stand for all clients, and a message to one of them carries a bundle (`deploy.ray_server` packs, `deploy.ray_client` opens).
Records are carried as they are, under ``PLACE/SLOT``; what a message says of itself, and a reply of its error, is text beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from flwr.app import ConfigRecord, Error, Message, Metadata, RecordDict

BUNDLE = "query.bundle"
FACTS = "bundle"
_METADATA = {"message-id": "message_id", "node": "dst_node_id", "source": "src_node_id", "run": "run_id", "group": "group_id",
             "type": "message_type", "created": "created_at", "ttl": "ttl"}
_AS_TEXT = ("run", "node", "source")  # numbers of 64 bits without a sign, which a record of integers may not hold


def bundled(messages: Sequence[Message], node: int, ttl: float) -> Message:
    """``messages`` as one to Flower's ``node``."""
    content = _together([message.content for message in messages])
    facts: dict[str, Any] = {key: [getattr(message.metadata, name) for message in messages] for key, name in _METADATA.items()}
    content[FACTS] = ConfigRecord(facts | {key: [str(number) for number in facts[key]] for key in _AS_TEXT})
    return Message(content, node, BUNDLE, ttl=ttl, group_id=messages[0].metadata.group_id)


def opened(bundle: Message) -> list[Message]:
    """The messages that `bundled` put together."""
    facts = cast(Mapping[str, Any], bundle.content[FACTS])
    found = []
    for place, content in enumerate(_apart(bundle.content, len(facts["type"]))):
        given = {name: int(facts[key][place]) if key in _AS_TEXT else facts[key][place] for key, name in _METADATA.items()}
        found.append(Message(content, metadata=Metadata(**given, reply_to_message_id="")))  # type: ignore[call-overload]
    return found


def bundled_replies(replies: Sequence[Message]) -> RecordDict:
    """The content of the reply to a bundle: ``replies`` in the order of its messages."""
    content = _together([reply.content if reply.has_content() else RecordDict() for reply in replies])
    errors = [reply.error if reply.has_error() else None for reply in replies]
    content[FACTS] = ConfigRecord({"failed": [error is not None for error in errors],
                                   "code": [error.code if error else 0 for error in errors],
                                   "reason": [(error.reason or "") if error else "" for error in errors]})
    return content


def opened_replies(reply: Message, asked: Sequence[Message]) -> list[Message]:
    """A reply to each of ``asked``, whose bundle ``reply`` answers; an error where all of it failed."""
    if reply.has_error():
        return [Message(Error(reply.error.code, reply.error.reason), reply_to=message) for message in asked]
    facts = cast(Mapping[str, Any], reply.content[FACTS])
    contents = _apart(reply.content, len(asked))
    errors = [Error(code, reason) if failed else None
              for failed, code, reason in zip(facts["failed"], facts["code"], facts["reason"], strict=True)]
    return [Message(error or content, reply_to=message) for message, content, error in zip(asked, contents, errors, strict=True)]


def _together(contents: Sequence[RecordDict]) -> RecordDict:
    return RecordDict({f"{place}/{slot}": record for place, content in enumerate(contents) for slot, record in content.items()})


def _apart(whole: RecordDict, count: int) -> list[RecordDict]:
    found = [RecordDict() for _ in range(count)]
    for key, record in whole.items():
        place, slash, slot = key.partition("/")
        if slash:
            found[int(place)][slot] = record
    return found
