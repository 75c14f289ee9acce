"""Artifacts behind an S3 server: found on another machine by key, whole or not at all, however transfers end."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from iar.errors import PermanentError, TemporaryError, UserError
from iar.records import write_json
from iar.services import object_store
from iar.services.execution import Finished
from iar.services.object_store import PART_BYTES, Bucket
from iar.services.store import Store, StoredRef
from iar.services.store_transfer import put_folder
from iar.services.workspace import Workspace, read_manifest
from tests.services import store_task
from tests.services.s3_server import BUCKET, PLACE, Request, S3Server, error
from tests.services.store_task import MADE, content, run_task

ROOT = Path(__file__).parents[2]
SMALL = {"model.bin": 3000, "deep/down/a.json": 200, "empty": 0}
LARGE = {"weights": 3 * PART_BYTES + 5, "notes.txt": 10}  # four parts


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the real modules back after each test."""
    monkeypatch.delenv("IAR_STATE", raising=False)
    for name in ("iar.stages.base_model", "iar.stages.merge_candidate", "iar.services.tracking"):
        monkeypatch.setitem(sys.modules, name, sys.modules.get(name))
    MADE.clear()
    yield


def files_of(finished: Finished) -> dict[str, bytes]:
    folder = finished.ref.path
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    del found["manifest.json"]
    return found


def made(sizes: dict[str, int], salt: str = "") -> dict[str, bytes]:
    return {name: content(name, size, salt) for name, size in sizes.items()}


def start(folder: Path, sizes: dict[str, int], salt: str = "") -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", store_task.__name__, str(folder), PLACE, json.dumps(sizes), salt]
    folder.mkdir(exist_ok=True)
    with (folder / "log").open("w") as log:
        return subprocess.Popen(command, cwd=ROOT, stderr=log)


def log_of(process: "subprocess.Popen[bytes]") -> str:
    return Path(process.args[3], "log").read_text()  # type: ignore[index, arg-type]


def kill_at(server: S3Server, kind: str, count: int, process: "list[subprocess.Popen[bytes]]") -> None:
    """Kill the process, with no time to tidy up, when its `count`-th request of this kind arrives."""
    left = iter(range(count - 1, -1, -1))

    def before(request: Request) -> None:
        if request.kind == kind and next(left, -1) == 0:
            os.kill(process[0].pid, signal.SIGKILL)

    server.before = before


# --- one machine after the other


def test_another_machine_finds_the_artifact_by_its_key_and_makes_nothing(s3: S3Server, tmp_path: Path) -> None:
    first = run_task(tmp_path / "a", PLACE, SMALL)
    second = run_task(tmp_path / "b", PLACE, SMALL)
    assert (first.reused, second.reused) == (False, True)
    assert MADE == ["base-model"]
    assert files_of(second) == files_of(first) == made(SMALL)
    assert second.ref.open(verify=True) == first.ref.open(verify=True)
    assert first.handed_on == second.handed_on
    assert first.handed_on.startswith(f"{PLACE}/artifacts/base-model/")
    entry = json.loads(next((tmp_path / "b" / "state" / "runs").glob("*/tasks/base-model.json")).read_text())
    assert entry["ref"] == str(second.ref) and entry["reused"]
    assert not list((tmp_path / "b" / "state" / "fetch").glob("*/"))


def test_where_things_are_kept_changes_neither_run_nor_keys(tmp_path: Path) -> None:
    plain, stored = store_task.settings(tmp_path, ""), store_task.settings(tmp_path, PLACE)
    assert plain.run_id == stored.run_id


def test_without_a_store_no_client_is_imported(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from tests.services.store_task import run_task\n"
        "finished = run_task(Path(sys.argv[1]), '', {'a': 1})\n"
        "assert finished.handed_on == str(finished.ref)\n"
        "assert not {'boto3', 'botocore'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, check=True)


def test_inputs_are_fetched_only_by_a_stage_that_is_made(s3: S3Server, tmp_path: Path) -> None:
    base = run_task(tmp_path / "a", PLACE, SMALL)
    ref = StoredRef.parse(base.handed_on)
    assert str(ref) == base.handed_on
    there = Store(ref.place, Workspace(tmp_path / "b" / "state"))
    s3.counted()
    assert there.manifest(ref).content == base.ref.open().content
    assert s3.counted() == {"GetObject": 1} and not (tmp_path / "b" / "state" / "artifacts").exists()
    folder = there.open(ref, lambda done, total, note: None)
    assert {path.name for path in folder.rglob("*") if path.is_file()} == {
        "model.bin", "a.json", "empty", "manifest.json",
    }  # fmt: skip
    s3.counted()
    assert there.open(ref, lambda done, total, note: None) == folder
    assert there.manifest(ref) and not s3.counted(), "what is here is not asked for again"


def test_a_stage_on_another_machine_takes_its_inputs_from_the_store(s3: S3Server, tmp_path: Path) -> None:
    base = run_task(tmp_path / "a", PLACE, SMALL).handed_on
    merged = run_task(tmp_path / "b", PLACE, {"merged": 50}, name="merge_candidate", base=base, tuned=base)
    assert MADE == ["base-model", "merge-candidate"] and not merged.reused
    assert len(list((tmp_path / "b" / "state" / "artifacts" / "base-model").iterdir())) == 1
    again = run_task(tmp_path / "c", PLACE, {"merged": 50}, name="merge_candidate", base=base, tuned=base)
    assert again.reused and again.handed_on == merged.handed_on
    assert not (tmp_path / "c" / "state" / "artifacts" / "base-model").exists(), "what nobody reads is not fetched"


def test_an_artifact_with_released_files_is_made_again_for_the_store(s3: S3Server, tmp_path: Path) -> None:
    made_before = run_task(tmp_path / "a", "", SMALL).ref.path
    write_json(made_before / "released.json", ["model.bin"])
    (made_before / "model.bin").unlink()
    assert run_task(tmp_path / "a", "", SMALL).reused, "on this machine nothing is missed"
    assert not run_task(tmp_path / "a", PLACE, SMALL).reused
    assert files_of(run_task(tmp_path / "b", PLACE, SMALL)) == made(SMALL)
    assert MADE == ["base-model"] * 2


def test_an_artifact_from_before_the_store_is_brought_there(s3: S3Server, tmp_path: Path) -> None:
    assert not run_task(tmp_path / "a", "", SMALL).reused
    assert run_task(tmp_path / "a", PLACE, SMALL).reused
    assert run_task(tmp_path / "b", PLACE, SMALL).reused and MADE == ["base-model"]


@pytest.mark.parametrize("text", ["s3://b/x@sha256:12", "s3://b/artifacts/t/k", f"s3://b/t/k@sha256:{'0' * 64}"])
def test_any_other_text_is_no_reference(text: str) -> None:
    with pytest.raises(UserError, match="expected s3://bucket/prefix/artifacts/task/key@sha256:<64 digits>"):
        StoredRef.parse(text)


# --- large files and cuts


@pytest.mark.parametrize("checksums", ["when_supported", "when_required"])
def test_a_large_file_goes_up_in_parts_and_comes_back_with_its_bytes(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checksums: str
) -> None:
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", checksums)
    monkeypatch.setenv("AWS_RESPONSE_CHECKSUM_VALIDATION", checksums)
    run_task(tmp_path / "a", PLACE, LARGE)
    counts = s3.counted()
    assert (counts["CreateUpload"], counts["UploadPart"], counts["Complete"]) == (1, 4, 1)
    assert counts["PutObject"] == 2  # notes and manifest
    assert files_of(run_task(tmp_path / "b", PLACE, LARGE)) == made(LARGE)


@pytest.mark.parametrize("copied_bytes", [object_store.COPIED_BYTES, PART_BYTES])
def test_what_the_job_of_a_training_has_uploaded_is_copied_within_the_store(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copied_bytes: int
) -> None:
    monkeypatch.setattr(object_store, "COPIED_BYTES", copied_bytes)
    trained = LARGE | {"steps.jsonl": 0}
    manifest = read_manifest(run_task(tmp_path / "a", "", trained).ref.path)
    training = f"trainings/{manifest.task}-{manifest.key[:16]}/result/0123"
    store = Store(PLACE, Workspace(tmp_path / "a" / "state"))
    folder = store.workspace.artifact(manifest.task, manifest.key)
    weights = next(file for file in manifest.files if file.path == "weights")
    s3.client().upload_file(str(folder / "weights"), BUCKET, f"team/iar/{training}/{weights.sha256}")
    # Of a digest that is ours and another size: no upload that was completed.
    notes = next(file for file in manifest.files if file.path == "notes.txt")
    s3.client().put_object(Bucket=BUCKET, Key=f"team/iar/{training}/{notes.sha256}", Body=b"cut")

    sent: list[str] = []
    upload, upload_parts = Bucket.upload, Bucket.upload_parts
    monkeypatch.setattr(Bucket, "upload", lambda self, path, *more: (sent.append(path.name), upload(self, path, *more)))
    monkeypatch.setattr(
        Bucket, "upload_parts", lambda self, path, *more: (sent.append(path.name), upload_parts(self, path, *more))
    )
    store.keep(manifest, lambda *_: None)
    assert sorted(sent) == ["notes.txt", "steps.jsonl"]
    store.forget_training(manifest.task, manifest.key)
    assert not s3.names("team/iar/trainings/")
    assert files_of(run_task(tmp_path / "b", PLACE, trained)) == made(trained)
    assert len(MADE) == 1  # the second machine found the artifact


def test_a_copy_whose_source_is_gone_is_uploaded(s3: S3Server, tmp_path: Path) -> None:
    manifest = read_manifest(run_task(tmp_path / "a", "", LARGE).ref.path)
    folder = Workspace(tmp_path / "a" / "state").artifact(manifest.task, manifest.key)
    copies = {file.sha256: f"trainings/gone/{file.sha256}" for file in manifest.files}
    put_folder(Bucket(PLACE), "here", folder, manifest.files, b"{}", lambda *_: None, copies=copies)
    stored = {name.rpartition("/")[2] for name in s3.names("team/iar/here/")}
    assert stored == {file.sha256 for file in manifest.files} | {"manifest.json"}


def test_a_killed_upload_is_taken_up_without_repeating_files_or_parts(s3: S3Server, tmp_path: Path) -> None:
    sizes = {f"small-{number:02}": 100 + number for number in range(20)} | LARGE
    process: list[subprocess.Popen[bytes]] = []
    kill_at(s3, "Complete", 1, process)  # all parts are there, the last word is not
    process.append(start(tmp_path / "a", sizes))
    assert process[0].wait(60) == -signal.SIGKILL, log_of(process[0])
    assert s3.counted()["UploadPart"] == 4
    s3.before = lambda request: None
    # Nothing half is found: another machine makes its own, and says so; here only the manifest is missing.
    assert not any(name.endswith("manifest.json") for name in s3.names())

    s3.counted()
    finished = run_task(tmp_path / "a", PLACE, sizes)
    counts = s3.counted()
    assert finished.reused and MADE == [], "published before it was uploaded, so not made again"
    assert counts["PutObject"] == 1 and counts["UploadPart"] <= 1 and counts["CreateUpload"] == 0
    assert files_of(run_task(tmp_path / "b", PLACE, sizes)) == made(sizes)


def test_a_cut_between_parts_repeats_only_the_parts_that_were_under_way(s3: S3Server, tmp_path: Path) -> None:
    refused = threading.Event()

    def before(request: Request) -> Any:
        if request.kind == "UploadPart" and "partNumber=3" in request.query:
            refused.set()
            return error("AccessDenied", "403 Forbidden")
        return None

    s3.before = before
    with pytest.raises(UserError, match=r"^writing s3://store/team/iar/artifacts/base-model/.* made up \(AccessDenied"):
        run_task(tmp_path / "a", PLACE, LARGE)
    assert refused.is_set()
    s3.before = lambda request: None
    assert s3.counted()["UploadPart"] == 4
    run_task(tmp_path / "a", PLACE, LARGE)
    assert s3.counted()["UploadPart"] == 1
    assert files_of(run_task(tmp_path / "b", PLACE, LARGE)) == made(LARGE)


def test_a_killed_download_is_taken_up_where_it_stood(s3: S3Server, tmp_path: Path) -> None:
    sizes = {f"small-{number:02}": 100 + number for number in range(20)} | LARGE
    run_task(tmp_path / "a", PLACE, sizes)
    process: list[subprocess.Popen[bytes]] = []
    weights = sizes["weights"]

    def after(request: Request, body: list[bytes]) -> Any:
        """Send the first half of the large file, and kill the reader when the rest of what it wants is on its disk."""
        whole = b"".join(body)
        if request.kind != "GetObject" or len(whole) < PART_BYTES:
            return [whole]

        def stream() -> Iterator[bytes]:
            yield whole[: weights // 2]
            folder = tmp_path / "b" / "state" / "fetch"
            wait_until(lambda: len(list(folder.glob("*/small-*[0-9]"))) == 20 and parts(folder) > 4 << 20)
            os.kill(process[0].pid, signal.SIGKILL)
            yield whole[weights // 2 :]

        return stream()

    def parts(folder: Path) -> int:
        return sum(path.stat().st_size for path in folder.glob("*/weights.part"))

    s3.after = after
    process.append(start(tmp_path / "b", sizes))
    assert process[0].wait(60) == -signal.SIGKILL, log_of(process[0])
    there = parts(tmp_path / "b" / "state" / "fetch")
    assert 4 << 20 < there < weights
    assert not (tmp_path / "b" / "state" / "artifacts").exists(), "half an artifact is none"

    s3.after = lambda request, body: body
    s3.counted()
    finished = run_task(tmp_path / "b", PLACE, sizes)
    assert finished.reused and MADE == ["base-model"]
    assert s3.counted()["GetObject"] <= 3, "the manifest, the rest of one file, and the notes at most"
    assert files_of(finished) == made(sizes)


def wait_until(ready: Any, seconds: float = 30) -> None:
    for _ in range(int(seconds * 50)):
        if ready():
            return
        threading.Event().wait(0.02)
    raise AssertionError("not ready in time")


def test_a_stream_that_breaks_is_continued_within_the_run(s3: S3Server, tmp_path: Path) -> None:
    run_task(tmp_path / "a", PLACE, LARGE)
    broken = iter([True, True])

    def after(request: Request, body: list[bytes]) -> Any:
        whole = b"".join(body)
        return [whole[: len(whole) // 2]] if len(whole) > 1 << 20 and next(broken, False) else [whole]

    s3.after = after
    s3.counted()
    assert files_of(run_task(tmp_path / "b", PLACE, LARGE)) == made(LARGE)
    assert s3.counted()["GetObject"] == 5, "manifest, notes, and the large file in three pieces"


# --- damage


def test_an_object_whose_bytes_were_changed_is_refused(s3: S3Server, tmp_path: Path) -> None:
    run_task(tmp_path / "a", PLACE, SMALL)
    name = next(
        name for name in s3.names() if s3.client().head_object(Bucket=BUCKET, Key=name)["ContentLength"] == 3000
    )
    s3.client().put_object(Bucket=BUCKET, Key=name, Body=b"x" * 3000)
    with pytest.raises(PermanentError, match=rf"^s3://store/{name}: its bytes were changed: SHA-256 \w+, not \w+$"):
        run_task(tmp_path / "b", PLACE, SMALL)
    assert not (tmp_path / "b" / "state" / "artifacts").exists()
    s3.client().put_object(Bucket=BUCKET, Key=name, Body=content("model.bin", 3000))
    assert files_of(run_task(tmp_path / "b", PLACE, SMALL)) == made(SMALL)


@pytest.mark.parametrize("damage", ["gone", "shorter", "longer"])
def test_an_object_that_is_not_what_the_manifest_says_is_refused(s3: S3Server, tmp_path: Path, damage: str) -> None:
    run_task(tmp_path / "a", PLACE, {"model.bin": 3000})
    (name,) = [name for name in s3.names() if not name.endswith("manifest.json")]
    if damage == "gone":
        s3.client().delete_object(Bucket=BUCKET, Key=name)
    else:
        s3.client().put_object(
            Bucket=BUCKET, Key=name, Body=content("model.bin", 2000 if damage == "shorter" else 4000)
        )
    with pytest.raises(PermanentError, match=r"is gone, though a manifest lists it|its bytes were changed"):
        run_task(tmp_path / "b", PLACE, {"model.bin": 3000})


def test_a_piece_that_was_damaged_here_is_fetched_again(s3: S3Server, tmp_path: Path) -> None:
    run_task(tmp_path / "a", PLACE, {"model.bin": 3000})
    (name,) = [name for name in s3.names() if not name.endswith("manifest.json")]
    s3.before = lambda request: error("AccessDenied", "403 Forbidden") if request.path == name else None
    with pytest.raises(UserError, match="AccessDenied"):
        run_task(tmp_path / "b", PLACE, {"model.bin": 3000})
    (folder,) = (tmp_path / "b" / "state" / "fetch").glob("*/")
    (folder / "model.bin.part").write_bytes(b"?" * 2000)
    s3.before = lambda request: None
    assert files_of(run_task(tmp_path / "b", PLACE, {"model.bin": 3000})) == made({"model.bin": 3000})


def test_a_manifest_that_leads_out_of_its_folder_is_refused(s3: S3Server, tmp_path: Path) -> None:
    run_task(tmp_path / "a", PLACE, {"model.bin": 30})
    (name,) = [name for name in s3.names() if name.endswith("manifest.json")]
    told = s3.client().get_object(Bucket=BUCKET, Key=name)["Body"].read()
    s3.client().put_object(Bucket=BUCKET, Key=name, Body=told.replace(b"model.bin", b"../../../../x"))
    with pytest.raises(PermanentError, match=r"its manifest names '\.\./\.\./\.\./\.\./x', which no artifact has"):
        run_task(tmp_path / "b", PLACE, {"model.bin": 30})


def test_a_changed_manifest_and_a_lost_artifact_are_refused(s3: S3Server, tmp_path: Path) -> None:
    ref = StoredRef.parse(run_task(tmp_path / "a", PLACE, SMALL).handed_on)
    there = Store(ref.place, Workspace(tmp_path / "b" / "state"))
    with pytest.raises(PermanentError, match="its manifest was changed; delete it from the store to rebuild it"):
        there.manifest(StoredRef(ref.place, ref.task, ref.key, "0" * 64))
    with pytest.raises(UserError, match="is gone: run the same run file again to rebuild it"):
        there.manifest(StoredRef(ref.place, "elsewhere", ref.key, ref.digest))


def test_a_damaged_local_copy_is_fetched_again(s3: S3Server, tmp_path: Path) -> None:
    first = run_task(tmp_path / "a", PLACE, SMALL)
    (first.ref.path / "model.bin").write_bytes(b"cut")
    again = run_task(tmp_path / "a", PLACE, SMALL)
    assert again.reused and MADE == ["base-model"] and files_of(again) == made(SMALL)


# --- several writers


def test_of_two_writers_at_once_one_whole_artifact_is_left_and_both_have_it(s3: S3Server, tmp_path: Path) -> None:
    sizes = {f"file-{number}": 5000 for number in range(20)} | LARGE
    meeting = threading.Barrier(2)

    def before(request: Request) -> None:
        if request.kind == "ListObjects":  # both have looked, and found nothing
            meeting.wait(60)

    s3.before = before
    processes = [start(tmp_path / name, sizes, salt=name) for name in ("a", "b")]
    for process in processes:
        assert process.wait(120) == 0, log_of(process)
    s3.before = lambda request: None
    assert len([name for name in s3.names() if name.endswith("manifest.json")]) == 1
    results = [run_task(tmp_path / name, PLACE, sizes) for name in ("a", "b", "c")]
    assert MADE == [] and all(result.reused for result in results)
    assert len({result.handed_on for result in results}) == 1
    assert files_of(results[0]) == files_of(results[1]) == files_of(results[2])
    assert files_of(results[2]) in (made(sizes, "a"), made(sizes, "b"))
    assert all(result.ref.open(verify=True) for result in results)


def test_two_writers_of_the_same_bytes_share_an_upload(s3: S3Server, tmp_path: Path) -> None:
    processes = [start(tmp_path / name, LARGE) for name in ("a", "b", "c")]
    for process in processes:
        assert process.wait(120) == 0, log_of(process)
    assert files_of(run_task(tmp_path / "d", PLACE, LARGE)) == made(LARGE)
    assert MADE == []


def test_who_comes_second_takes_over_what_the_first_one_made(s3: S3Server, tmp_path: Path) -> None:
    run_task(tmp_path / "b", "", SMALL, salt="b")  # made without the store
    first = run_task(tmp_path / "a", PLACE, SMALL, salt="a")
    second = run_task(tmp_path / "b", PLACE, SMALL, salt="b")
    assert second.handed_on == first.handed_on and files_of(second) == made(SMALL, "a")


# --- what it costs


@pytest.mark.parametrize("count", [10, pytest.param(1000, marks=pytest.mark.slow)])
def test_requests_grow_with_the_files_of_the_artifact_and_with_nothing_else(
    s3: S3Server, tmp_path: Path, count: int
) -> None:
    other = s3.client()
    for number in range(30):  # what else lies in the bucket
        other.put_object(Bucket=BUCKET, Key=f"team/iar/artifacts/inject/other-{number}/manifest.json", Body=b"{}")
    sizes = {f"part-{number:04}.json": 1 + number for number in range(count)}
    s3.counted()
    run_task(tmp_path / "a", PLACE, sizes)
    assert s3.counted() == {"GetObject": 1, "ListObjects": 1, "PutObject": count + 1}
    finished = run_task(tmp_path / "b", PLACE, sizes)
    assert s3.counted() == {"GetObject": count + 1}
    assert files_of(finished) == made(sizes)
    run_task(tmp_path / "b", PLACE, sizes)
    assert s3.counted() == {"GetObject": 1}


# --- servers, buckets and keys that refuse


def test_errors_are_one_line_with_the_fix_and_without_the_key(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        UserError, match=r"^reading s3://elsewhere/x/artifacts/\S+: .* \(NoSuchBucket\); make the bucket"
    ):
        run_task(tmp_path / "a", "s3://elsewhere/x", SMALL)
    for status, code in (("403 Forbidden", "InvalidAccessKeyId"), ("403 Forbidden", "SignatureDoesNotMatch")):
        s3.before = lambda request, status=status, code=code: error(code, status)  # type: ignore[misc]
        with pytest.raises(UserError, match=rf"\({code}\); check the bucket's policy") as refused:
            run_task(tmp_path / "a", PLACE, SMALL)
        assert "\n" not in str(refused.value) and "s3cret" not in str(refused.value)
    s3.before = lambda request: error("InternalError", "500 Internal Server Error")
    with pytest.raises(TemporaryError, match=r"\(InternalError\); run the same command again"):
        run_task(tmp_path / "a", PLACE, SMALL)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(TemporaryError, match=r"^reading s3://store/team/iar/.*check AWS_ENDPOINT_URL and the network"):
        run_task(tmp_path / "a", PLACE, SMALL)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "nonsense")
    with pytest.raises(UserError, match=r"^s3://store/team/iar: Invalid endpoint: nonsense; check AWS_ENDPOINT_URL"):
        run_task(tmp_path / "a", PLACE, SMALL)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.url)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    with pytest.raises(UserError, match=r"^reading s3://store/team/iar/\S+: no credentials; set AWS_ACCESS_KEY_ID and"):
        run_task(tmp_path / "a", PLACE, SMALL)
    assert MADE == []


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(UserError, match=r"^s3://store/team/iar: an S3 store needs the package boto3; pip install"):
        run_task(tmp_path / "a", PLACE, SMALL)


def test_a_failed_upload_keeps_the_work(s3: S3Server, tmp_path: Path) -> None:
    def before(request: Request) -> Any:
        return error("SlowDown", "503 Slow Down") if request.kind == "PutObject" else None

    s3.before = before
    with pytest.raises(TemporaryError, match=r"\(SlowDown\); run the same command again"):
        run_task(tmp_path / "a", PLACE, {"model.bin": 30})
    s3.before = lambda request: None
    assert run_task(tmp_path / "a", PLACE, {"model.bin": 30}).reused and MADE == ["base-model"]


def test_a_passing_fault_of_the_server_is_not_noticed(s3: S3Server, tmp_path: Path) -> None:
    faults = iter([True, False] * 100)
    s3.before = lambda request: error("InternalError", "500 Internal Server Error") if next(faults) else None
    run_task(tmp_path / "a", PLACE, {"model.bin": 30})
    s3.before = lambda request: None
    assert run_task(tmp_path / "b", PLACE, {"model.bin": 30}).reused


def test_a_server_without_conditional_writes_will_do(s3: S3Server, tmp_path: Path) -> None:
    refused = iter([True])

    def before(request: Request) -> Any:
        manifest = request.kind == "PutObject" and request.path.endswith("manifest.json")
        return error("NotImplemented", "501 Not Implemented") if manifest and next(refused, False) else None

    s3.before = before
    run_task(tmp_path / "a", PLACE, SMALL)
    assert files_of(run_task(tmp_path / "b", PLACE, SMALL)) == made(SMALL)


def test_a_deleted_artifact_is_made_again(s3: S3Server, tmp_path: Path) -> None:
    first = run_task(tmp_path / "a", PLACE, SMALL)
    for name in s3.names():
        s3.client().delete_object(Bucket=BUCKET, Key=name)
    shutil.rmtree(first.ref.path)
    assert not run_task(tmp_path / "a", PLACE, SMALL).reused
    assert MADE == ["base-model", "base-model"]
