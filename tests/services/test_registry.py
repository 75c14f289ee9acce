"""The registry on SQLite: the common cases, and what only a file can get wrong."""

from pathlib import Path

import pytest

from iar.errors import UserError
from iar.records import Lineage
from iar.services.registry import Producer, Registry
from tests.services.registry_cases import *  # noqa: F403
from tests.services.registry_migrations import *  # noqa: F403
from tests.services.registry_tampering import *  # noqa: F403


@pytest.fixture
def registry_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/state/registry.db"


def test_a_reopened_file_holds_what_was_recorded(registry_url: str) -> None:
    first = Registry.open(registry_url)
    first.record([Lineage("document", "d" * 64, "one", {})], Producer("r", "s", "1", "c", 17, 0.0, 0.0))
    first.close()

    assert Registry.open(registry_url).find("ddd").name == "one"


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "registry.db").write_text("not a database, and long enough to be read as one\n" * 100)

    with pytest.raises(UserError, match=r"file is not a database; check register.registry_url and that the file is"):
        Registry.open(f"sqlite:///{tmp_path}/registry.db")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://me:s3cret@db/iar", r"postgresql://me:\*\*\*@db/iar holds a password; set PGUSER and PGPASSWORD"),
        ("postgresql://db/iar?password=s3cret", r"postgresql://db/iar holds a password; set PGUSER and PGPASSWORD"),
        ("mysql://db/iar", r"mysql://db/iar is 'mysql'; use sqlite:///file or postgresql://host/database"),
        ("registry.db", r"register.registry_url: not a URL; write it as postgresql://host/database"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_showing_a_password(url: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as refused:
        Registry.open(url)
    assert "s3cret" not in str(refused.value)


def test_an_unreachable_server_is_one_line_without_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("psycopg")
    monkeypatch.setenv("PGUSER", "me")
    monkeypatch.setenv("PGPASSWORD", "s3cret")

    with pytest.raises(UserError, match=r"Connection refused.*check register.registry_url, PGUSER") as refused:
        Registry.open("postgresql://127.0.0.1:1/iar")
    assert "\n" not in str(refused.value) and "s3cret" not in str(refused.value)
