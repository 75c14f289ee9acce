"""What a registry must do on every database. Collected by the modules that define `registry_url`."""

import multiprocessing
import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine.cursor import CursorFetchStrategy

from iar.errors import PermanentError, UserError
from iar.methods.digest import digest_text
from iar.records import Lineage
from iar.services.lineage import format_rows, list_kind, render_downstream, render_upstream
from iar.services.lineage_activities import activities, failed_uses
from iar.services.registry import Edge, Producer, Registry
from iar.services.registry_pages import edges_page, events_page

PRODUCER = Producer("demo-0123456789", "qa-build", "1.0", "c0ffee", 17, 1000.0, 2.5)
WRITERS = 4
CALLS = 12
ROWS = 40


@pytest.fixture
def registry(registry_url: str) -> Iterator[Registry]:
    opened = Registry.open(registry_url)
    yield opened
    opened.close()


def entry(kind: str, name: str, *inputs: tuple[str, str]) -> Lineage:
    return Lineage(kind, digest_text(f"{kind}/{name}"), name, {"name": name}, inputs)


def full(digits: str) -> str:
    return digits.ljust(64, "0")


def a_run(pairs: int = 3) -> dict[str, Lineage]:
    """Two documents, one chunk each, `pairs` questions a chunk, a data set, two checkpoints."""
    entries: dict[str, Lineage] = {}
    for number in (1, 2):
        document = entry("document", f"d{number}")
        chunk = entry("chunk", f"c{number}", ("document", document.digest))
        questions = [entry("qa-pair", f"q{number}.{index}", ("chunk", chunk.digest)) for index in range(pairs)]
        entries |= {one.name: one for one in (document, chunk, *questions)}
    members = tuple(("member", one.digest) for one in entries.values() if one.kind == "qa-pair")
    entries["data"] = entry("dataset", "data", *members)
    entries["base"] = entry("checkpoint", "base")
    entries["tuned"] = entry("checkpoint", "tuned", ("data", entries["data"].digest), ("start", entries["base"].digest))
    return entries


def contents(registry: Registry, digest: str) -> tuple[list[Edge], Lineage]:
    return registry.upstream(digest), registry.find(digest)


def test_an_entry_comes_back_as_it_was_recorded(registry: Registry) -> None:
    entries = a_run()
    entries["odd"] = Lineage("dataset", "f" * 64, "naïve – 名", {"share": 0.1, "nested": {"b": [1, None]}}, ())

    registry.record(entries.values(), PRODUCER)

    assert registry.find("f" * 64) == entries["odd"]
    assert registry.find(entries["tuned"].digest).inputs == tuple(sorted(entries["tuned"].inputs))


def test_inputs_may_be_recorded_in_the_same_call_in_any_order(registry: Registry) -> None:
    registry.record(reversed(list(a_run().values())), PRODUCER)

    assert len(registry.upstream(a_run()["tuned"].digest)) == 16


def test_recording_again_changes_nothing(registry: Registry) -> None:
    entries = a_run()
    registry.record(entries.values(), PRODUCER)
    before = contents(registry, entries["tuned"].digest)

    registry.record(entries.values(), Producer(**(vars(PRODUCER) | {"started": 2000.0, "seconds": 9.0})))

    assert contents(registry, entries["tuned"].digest) == before


def test_another_activity_adds_its_own_edge_and_keeps_the_first_description(registry: Registry) -> None:
    entries = a_run()
    registry.record(entries.values(), PRODUCER)
    again = Lineage("chunk", entries["c1"].digest, "renamed", {}, entries["c1"].inputs)

    registry.record([again], Producer(**(vars(PRODUCER) | {"code_version": "1.1"})))

    edges = registry.upstream(again.digest)
    assert len(edges) == 2 and len({edge.activity for edge in edges}) == 2
    assert registry.find(again.digest).name == "c1"


def test_a_call_with_an_unrecorded_input_leaves_nothing_behind(registry: Registry) -> None:
    good, bad = entry("document", "d"), entry("chunk", "c", ("document", "0" * 64))

    with pytest.raises(PermanentError, match=r"has as document '0{64}', which was never recorded; record inputs"):
        registry.record([good, bad], PRODUCER)

    assert registry.labels([good.digest, bad.digest]) == {}


def test_upstream_ends_at_the_sources_and_downstream_at_the_products(registry: Registry) -> None:
    entries = a_run()
    registry.record(entries.values(), PRODUCER)

    upstream = registry.upstream(entries["tuned"].digest)
    downstream = registry.downstream(entries["d1"].digest)

    assert {edge.input for edge in upstream} - {edge.product for edge in upstream} == {
        entries["d1"].digest,
        entries["d2"].digest,
        entries["base"].digest,
    }
    assert {edge.product for edge in downstream} == {
        entries[name].digest for name in ("c1", "q1.0", "q1.1", "q1.2", "data", "tuned")
    }
    assert registry.upstream(entries["base"].digest) == []
    assert registry.upstream("unknown") == registry.upstream("0" * 64) == []


def test_a_circle_ends(registry: Registry) -> None:
    first, second = entry("x", "1"), entry("x", "2", ("from", entry("x", "1").digest))
    registry.record([first, second], PRODUCER)
    registry.record([Lineage("x", first.digest, "1", {}, (("from", second.digest),))], PRODUCER)

    assert len(registry.upstream(first.digest)) == 2
    assert [row.name for row in render_upstream(registry, first.digest)] == ["1", "2"]


def test_find_takes_any_unique_beginning_with_or_without_the_kind(registry: Registry) -> None:
    entries = a_run()
    registry.record(entries.values(), PRODUCER)
    digest = entries["tuned"].digest

    assert registry.find(f"checkpoint:{digest[:12]}") == registry.find(digest[:12]) == registry.find(digest)


def test_find_names_the_candidates_of_an_ambiguous_id(registry: Registry) -> None:
    registry.record(
        [Lineage("a", full("aa1"), "one", {}), Lineage("b", full("aa2"), "two", {}), Lineage("b", full("ab"), "", {})],
        PRODUCER,
    )

    with pytest.raises(
        UserError, match=r"'aa' fits several entries: a:aa1[0]+ \(one\), b:aa2[0]+ \(two\); give more digits"
    ):
        registry.find("aa")
    assert registry.find("b:aa").digest == full("aa2")
    assert registry.find("ab").digest == registry.find(full("ab")).digest == full("ab")


@pytest.mark.parametrize("asked", ["aaf", "zebra:aa1", "aa1%", "aa1f' OR 1=1"])
def test_find_names_the_closest_of_an_unknown_id(registry: Registry, asked: str) -> None:
    registry.record([Lineage("a", full("aa1"), "one", {}), Lineage("b", full("bb2"), "two", {})], PRODUCER)

    with pytest.raises(UserError, match=r"no such entry; closest: a:aa10{9} \(one\)$"):
        registry.find(asked)


def test_find_in_an_empty_registry_says_so(registry: Registry) -> None:
    with pytest.raises(UserError, match="no such entry; closest: the registry is empty"):
        registry.find("model:abc")


def test_events_keep_their_order_and_form_an_intact_chain(registry: Registry) -> None:
    registry.event("started", "run-1", {"seed": 17})
    registry.event("retracted", "d" * 64, {"reason": "licence"})
    registry.event("finished", "run-1", {"seconds": 0.1})

    events = registry.events()
    assert [event.kind for event in events] == ["started", "retracted", "finished"]
    assert [event.previous for event in events] == ["", events[0].digest, events[1].digest]
    assert [event.payload for event in registry.events("run-1")] == [{"seed": 17}, {"seconds": 0.1}]
    assert registry.verify() == []


def test_verify_finds_what_was_changed_behind_the_registry(registry: Registry, registry_url: str) -> None:
    from sqlalchemy import text

    from iar.services.database import open_engine, parse_url

    registry.record(a_run().values(), PRODUCER)
    for number in range(3):
        registry.event("step", "run-1", {"number": number})
    engine = open_engine(parse_url(registry_url))
    with engine.begin() as connection:
        connection.execute(text("UPDATE entities SET payload = '{}' WHERE name = 'd1'"))
        connection.execute(text("DELETE FROM events WHERE payload LIKE '%1%'"))
    engine.dispose()

    assert registry.verify() == [
        f"entity document:{a_run()['d1'].digest[:12]}: changed after it was recorded",
        "event 3: the chain is broken here",
    ]


def write_a_share(url: str, writer: int) -> None:
    """Record what all writers share and what only this one has, in an order of its own, with events between."""
    registry = Registry.open(url)
    order = random.Random(writer)
    for call in range(CALLS):
        shared = [entry("shared", f"{call}/{row}") for row in range(ROWS)]
        own = [entry("own", f"{writer}/{call}/{row}", ("from", shared[row].digest)) for row in range(ROWS)]
        order.shuffle(mixed := shared + own)
        registry.record(mixed, Producer(**(vars(PRODUCER) | {"run_id": f"run-{writer}"})))
        registry.event("recorded", f"run-{writer}", {"call": call})


def test_four_processes_opening_and_writing_at_once_lose_nothing(
    registry_url: str, request: pytest.FixtureRequest
) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write_a_share, args=(registry_url, number)) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()

    assert [writer.exitcode for writer in writers] == [0] * WRITERS
    registry = request.getfixturevalue("registry")
    for call in range(CALLS):
        for row in range(ROWS):
            assert len(registry.downstream(entry("shared", f"{call}/{row}").digest)) == WRITERS
    assert len(registry.events()) == WRITERS * CALLS
    assert registry.verify() == []


def test_a_dataset_of_five_thousand_questions_is_drawn_as_groups(registry: Registry) -> None:
    entries = list(a_run(pairs=5000).values())
    registry.record(entries, PRODUCER)
    rows = render_upstream(registry, entries[-1].digest)
    assert [row[:4] for row in rows] == [
        (0, "", "checkpoint", "tuned"),
        (1, "data", "dataset", "data"),
        (2, "member", "qa-pair", "10000 entries"),
        (3, "chunk", "chunk", "c1"),
        (4, "document", "document", "d1"),
        (3, "chunk", "chunk", "c2"),
        (4, "document", "document", "d2"),
        (1, "start", "checkpoint", "base"),
    ]
    assert len(render_upstream(registry, entries[-1].digest, shown=None)) == len(entries)


def test_the_tree_shows_each_entry_once_on_its_shortest_way(registry: Registry) -> None:
    base = entry("checkpoint", "base")
    tuned = entry("checkpoint", "tuned", ("start", base.digest))
    merged = entry("checkpoint", "merged", ("tuned", tuned.digest), ("base", base.digest))
    registry.record([base, tuned, merged], PRODUCER)

    assert format_rows(render_upstream(registry, merged.digest)) == (
        f"checkpoint:{merged.digest[:12]}  merged\n"
        f"  base: checkpoint:{base.digest[:12]}  base\n"
        f"  tuned: checkpoint:{tuned.digest[:12]}  tuned"
    )
    assert format_rows(render_downstream(registry, base.digest)) == (
        f"checkpoint:{base.digest[:12]}  base\n"
        f"  base: checkpoint:{merged.digest[:12]}  merged\n"
        f"  start: checkpoint:{tuned.digest[:12]}  tuned"
    )


def test_all_of_a_kind_are_listed_by_name_and_no_other(registry: Registry) -> None:
    entries = a_run()
    registry.record(entries.values(), PRODUCER)

    down = list_kind(registry, entries["d1"].digest, "qa-pair", up=False)
    assert [(row.depth, row.name) for row in down] == [(0, "d1"), (1, "q1.0"), (1, "q1.1"), (1, "q1.2")]
    assert [row.name for row in list_kind(registry, entries["tuned"].digest, "document", up=True)][1:] == ["d1", "d2"]
    assert [row.name for row in list_kind(registry, entries["base"].digest, "document", up=True)] == ["base"]
    with pytest.raises(UserError, match=r"--kind 'model': the registry has none; it has checkpoint, chunk, dataset"):
        list_kind(registry, entries["d1"].digest, "model", up=False)


def test_a_group_says_how_many_it_stands_for(registry: Registry) -> None:
    entries = a_run(pairs=3)
    registry.record(entries.values(), PRODUCER)

    lines = format_rows(render_upstream(registry, entries["data"].digest, shown=5)).splitlines()

    assert lines[1] == "  member: qa-pair: 6 entries"


def test_an_event_after_another_is_written_only_if_none_of_its_subject_came_between(registry: Registry) -> None:
    assert registry.event_after("", "move", "m@a", {"version": "1"})
    registry.event("other", "m@b", {})
    (first,) = registry.events("m@a")

    with ThreadPoolExecutor(6) as writers:
        wrote = list(writers.map(lambda n: registry.event_after(first.digest, "move", "m@a", {"by": n}), range(6)))

    assert sorted(wrote) == [False] * 5 + [True]
    assert not registry.event_after("", "move", "m@a", {}) and len(registry.events("m@a")) == 2
    assert registry.verify() == []


def test_an_activity_without_a_result_stands_in_the_chain_once(registry: Registry, registry_url: str) -> None:
    from sqlalchemy import text

    from iar.services.database import open_engine, parse_url

    registry.record(a_run().values(), PRODUCER)
    used = (("data", a_run()["data"].digest),)
    failed = Producer(**(vars(PRODUCER) | {"status": "failed", "error": "UserError", "message": "no", "used": used}))
    before = registry.head()
    registry.activity(failed)
    after = registry.head()
    registry.activity(failed)

    assert before != after == registry.head() and registry.verify([before, after]) == []
    again = Producer(**(vars(failed) | {"started": 2000.0}))
    registry.activity(again)
    assert [one.status for one in activities(registry, PRODUCER.run_id)] == ["finished", "failed", "failed"]
    assert [(role, one.message) for role, one in failed_uses(registry, used[0][1])] == [("data", "no")] * 2

    engine = open_engine(parse_url(registry_url))
    with engine.begin() as connection:
        connection.execute(text("UPDATE activities SET payload = replace(payload, 'UserError', 'other')"))
    engine.dispose()
    assert len(registry.verify()) == 2


@pytest.mark.parametrize("pairs", [20, 200])
def test_a_page_of_edges_or_events_fetches_its_own_rows_alone(registry: Registry, pairs: int) -> None:
    entries = a_run(pairs)
    registry.record(entries.values(), PRODUCER)
    for number in range(pairs):
        registry.event("step", "run-1", {"number": number})
    tuned, first = entries["tuned"].digest, entries["d1"].digest

    for up, digest, whole in ((True, tuned, registry.upstream(tuned)), (False, first, registry.downstream(first))):
        found, after = edges_page(registry, digest, up, "", 7)
        with reading(registry) as read:
            page, after_next = edges_page(registry, digest, up, after, 7)
        assert read["statements"] <= 4 and 7 < read["rows"] <= 1 + 7 + 1
        found += page
        while after_next:
            page, after_next = edges_page(registry, digest, up, after_next, 7)
            found += page
        assert len(found) == len(whole) and sorted(found) == whole

    with reading(registry) as read:
        events = events_page(registry, "run-1", 5, 6)
    assert [one.id for one in events] == [6, 7, 8, 9, 10, 11] and read["statements"] <= 2 and read["rows"] == 6
    assert events_page(registry, "", 0, pairs + 1) == registry.events() and events_page(registry, "x", 0, 5) == []


@contextmanager
def reading(registry: Registry) -> Iterator[Counter[str]]:
    """Count the statements that the registry sends inside the block, and the rows that come back."""
    read: Counter[str] = Counter()

    def asked(*arguments: Any) -> None:
        read["statements"] += 1

    def counted(fetch: Any) -> Any:
        def fetched(*arguments: Any, **named: Any) -> Any:
            rows = fetch(*arguments, **named)
            read["rows"] += len(rows) if isinstance(rows, list) else rows is not None
            return rows

        return fetched

    event.listen(registry.engine, "before_cursor_execute", asked)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fetchone", "fetchmany", "fetchall"):
            patch.setattr(CursorFetchStrategy, name, counted(getattr(CursorFetchStrategy, name)))
        yield read
    event.remove(registry.engine, "before_cursor_execute", asked)
