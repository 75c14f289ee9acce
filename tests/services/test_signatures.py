"""Signatures of a real run's registry and model; what they carry is read by the libraries of DSSE and in-toto."""

import json
import shutil
from base64 import b64decode
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from iar import cli
from iar.errors import UserError
from iar.methods.digest import digest_json
from iar.methods.provenance import scores_payload
from iar.records import Lineage, to_json
from iar.services.finalist import Finalist, finalist
from iar.services.promotion import promote
from iar.services.registry import Registry
from iar.services.signatures import (
    SIGN,
    SIGNATURE_FILE,
    folder_findings,
    run_findings,
    sign_entry,
    sign_run,
    signature_findings,
    signed_entries,
)
from iar.services.signing import PASSWORD, read_private_key, read_public_key
from iar.services.workspace import Workspace
from tests.finished_run import Finished
from tests.services.test_promotion import PRODUCER, Books
from tests.services.tracker_cases import fresh_store


def write_key(folder: Path, name: str, key: Any = None, password: bytes = b"") -> tuple[Path, Path]:
    """Write a new pair of keys; return private and public file."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    encryption = BestAvailableEncryption(password) if password else NoEncryption()
    private, public = folder / f"{name}.pem", folder / f"{name}.public.pem"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return private, public


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    return write_key(tmp_path, "ours")


@pytest.fixture
def one(finished: Finished) -> Finalist:
    return finalist(finished.settings)


@pytest.fixture
def registry(finished: Finished, tmp_path: Path) -> Registry:
    """Return a copy of the run's registry, to be signed and tampered with."""
    state = Workspace.of(finished.settings).state
    shutil.copy(state / "registry.sqlite", tmp_path / "registry.sqlite")
    return Registry.open(f"sqlite:///{tmp_path}/registry.sqlite")


def envelope(registry: Registry, digest: str) -> dict[str, Any]:
    found = [event.payload["envelope"] for event in registry.events(digest) if event.kind == SIGN]
    return dict(found[-1])


def test_a_run_is_signed_and_every_signature_holds(one: Finalist, registry: Registry, keys: tuple[Path, Path]) -> None:
    signed = sign_run(one, registry, keys[0])

    assert len(signed) == 3 and run_findings(one, registry, keys[1]) == []
    assert signature_findings(registry, keys[1]) == []
    assert registry.verify() == []
    secret = keys[0].read_text().splitlines()[1]
    payloads = json.dumps([event.payload for event in registry.events()])
    assert secret not in payloads and str(keys[0]) not in payloads


def test_signing_the_same_again_adds_nothing(one: Finalist, registry: Registry, keys: tuple[Path, Path]) -> None:
    assert sign_entry(registry, one.lineage, keys[0])
    assert not sign_entry(registry, one.lineage, keys[0])
    assert len([event for event in registry.events(one.lineage) if event.kind == SIGN]) == 1


def test_other_libraries_read_envelope_and_statement(
    one: Finalist, registry: Registry, keys: tuple[Path, Path]
) -> None:
    from google.protobuf import json_format
    from in_toto_attestation.predicates.provenance.v1.provenance_pb2 import Provenance
    from in_toto_attestation.v1.statement import Statement
    from in_toto_attestation.v1.statement_pb2 import Statement as Message
    from securesystemslib.dsse import Envelope
    from securesystemslib.signer import SSlibKey

    for digest in signed_entries(one):
        sign_entry(registry, digest, keys[0])
        found = envelope(registry, digest)
        signed = Envelope.from_dict(json.loads(json.dumps(found)) | {
            "signatures": [{"keyid": "k", "sig": one_["sig"]} for one_ in found["signatures"]]
        })  # fmt: skip
        key = SSlibKey("k", "ecdsa", "ecdsa-sha2-nistp256", {"public": keys[1].read_text()})
        assert list(signed.verify([key], 1)) == ["k"]
        message = json_format.Parse(b64decode(found["payload"]), Message())
        Statement.copy_from_pb(message).validate()
    built = json.loads(b64decode(envelope(registry, one.lineage)["payload"]))
    slsa = json_format.ParseDict(built["predicate"], Provenance())
    assert slsa.build_definition.build_type == "urn:iar:pipeline:v1"
    roles = {dict(part.annotations)["role"] for part in slsa.build_definition.resolved_dependencies}
    assert roles == {"weights", "selected-by", "upstream"}
    scores = json.loads(b64decode(envelope(registry, signed_entries(one)[1])["payload"]))
    assert scores["predicate"]["scores"] == json.loads(json.dumps(to_json(one.scores)))


def test_scores_of_a_second_look_are_signed_with_their_mark(
    one: Finalist, registry: Registry, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    tested = one.artifacts["locked-test"]
    shutil.copytree(tested.path, tmp_path / "tested")
    reading = json.loads((tested.path / "reading.json").read_text()) | {"other_picks": ["slerp-t9"], "seen_before": 1}
    (tmp_path / "tested" / "reading.json").write_text(json.dumps(reading))
    second = replace(one, artifacts=one.artifacts | {"locked-test": replace(tested, path=tmp_path / "tested")})
    assert one.scores and second.scores_entry != one.scores_entry
    mark = f"1 of {reading['questions']} questions taken before by 1 other model (slerp-t9)"
    payload = scores_payload(one.scores, mark)
    registry.record([Lineage("scores", digest_json(payload), "pick on test", payload)], PRODUCER)

    sign_run(second, registry, keys[0])

    assert run_findings(second, registry, keys[1]) == []
    statement = json.loads(b64decode(envelope(registry, second.scores_entry)["payload"]))
    assert statement["predicate"]["scores"]["taken_before"] == mark


def test_an_unsigned_entry_is_named(one: Finalist, registry: Registry, keys: tuple[Path, Path]) -> None:
    (line,) = signature_findings(registry, keys[1], [one.lineage])
    assert line.startswith(f"checkpoint:{one.lineage[:12]} (iar-demo ")
    assert line.endswith(f"not signed; sign it with iar sign {one.lineage[:12]} --key KEY.pem")


def test_a_wrong_key_is_named(one: Finalist, registry: Registry, keys: tuple[Path, Path], tmp_path: Path) -> None:
    sign_run(one, registry, keys[0])
    _, stranger = write_key(tmp_path, "stranger")
    lines = run_findings(one, registry, stranger)
    assert len(lines) == 3
    assert all("not signed by key" in line and "only by" in line for line in lines[:2])
    assert "the signature does not hold" in lines[2] or "key" in lines[2].lower()


def test_an_exchanged_statement_is_found(one: Finalist, registry: Registry, keys: tuple[Path, Path]) -> None:
    model, scores = signed_entries(one)
    sign_entry(registry, scores, keys[0])
    key = envelope(registry, scores)["signatures"][0]["keyid"]
    registry.event(SIGN, model, {"key": key, "envelope": envelope(registry, scores)})
    (line,) = signature_findings(registry, keys[1], [model])
    assert f"the statement is about {scores[:12]}, not about this" in line


def test_a_changed_statement_is_found(one: Finalist, registry: Registry, keys: tuple[Path, Path]) -> None:
    sign_entry(registry, one.lineage, keys[0])
    found = envelope(registry, one.lineage)
    changed = found | {"payload": found["payload"][:-8] + "AAAA" + found["payload"][-4:]}
    registry.event(SIGN, one.lineage, {"key": found["signatures"][0]["keyid"], "envelope": changed})
    (line,) = signature_findings(registry, keys[1], [one.lineage])
    assert "the signature is not one of key" in line
    registry.event(SIGN, one.lineage, {"key": found["signatures"][0]["keyid"], "envelope": {"payload": "%"}})
    assert signature_findings(registry, keys[1], [one.lineage])[1].endswith("the envelope is damaged")


def test_a_source_that_the_registry_lost_is_found(
    one: Finalist, registry: Registry, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    sign_entry(registry, one.lineage, keys[0])
    signatures = [event for event in registry.events() if event.kind == SIGN]
    other = Registry.open(f"sqlite:///{tmp_path}/other.sqlite")
    other.record([Lineage("checkpoint", one.lineage, "m", {})], PRODUCER)
    for event in signatures:
        other.event(event.kind, event.subject, event.payload)
    (line,) = signature_findings(other, keys[1])
    assert "was signed as made from" in line and "which the registry does not say any more" in line


def test_a_flipped_byte_in_a_shard_is_found(
    one: Finalist, registry: Registry, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    sign_run(one, registry, keys[0])
    bundle = next(event.payload["bundle"] for event in registry.events(one.lineage) if event.kind == "sign-folder")
    copy = shutil.copytree(one.model, tmp_path / "model")
    assert folder_findings(copy, bundle, keys[1]) == []

    shard = next(copy.glob("*.safetensors"))
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    (line,) = folder_findings(copy, bundle, keys[1])
    assert line == f"{copy}: {shard.name} is not what was signed"

    content[-1] ^= 1
    shard.write_bytes(content)
    (copy / "extra.py").write_text("print()")
    (line,) = folder_findings(copy, bundle, keys[1])
    assert line == f"{copy}: extra.py was not signed"
    (copy / "extra.py").unlink()
    shard.unlink()
    (line,) = folder_findings(copy, bundle, keys[1])
    assert line == f"{copy}: {shard.name} was signed and is gone"


def test_the_folder_s_signature_is_one_of_openssf(one: Finalist, registry: Registry, keys: tuple[Path, Path]) -> None:
    import model_signing

    sign_run(one, registry, keys[0])
    signature = Workspace.of(one.run_file).run(one.run_file.run_id) / SIGNATURE_FILE
    config = model_signing.verifying.Config().use_elliptic_key_verifier(public_key=keys[1])
    config.verify(one.model, signature)


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda folder: folder / "none.pem", "No such file or directory; name a PEM file"),
        (lambda folder: write_key(folder, "p")[1], "no private key in PEM, or another password; make one: openssl"),
        (
            lambda folder: write_key(folder, "e", ed25519.Ed25519PrivateKey.generate())[0],
            "not a key on P-256, P-384 or P-521",
        ),
        (lambda folder: write_key(folder, "s", password=b"open sesame")[0], f"is encrypted; set {PASSWORD}"),
    ],
)
def test_what_is_no_key_is_refused(tmp_path: Path, make: Any, line: str) -> None:
    with pytest.raises(UserError, match=line):
        read_private_key(make(tmp_path))


def test_an_encrypted_key_opens_by_its_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private, public = write_key(tmp_path, "locked", password=b"open sesame")
    monkeypatch.setenv(PASSWORD, "open sesame")
    assert read_private_key(private).public_key() == read_public_key(public)


def test_a_document_is_not_signed(registry: Registry, keys: tuple[Path, Path]) -> None:
    from iar.services.registry_pages import page

    document = page(registry, "document", "", 1)[0].digest
    with pytest.raises(UserError, match=r"a document is not signed; sign a checkpoint, a candidate or scores"):
        sign_entry(registry, document, keys[0])


def test_the_commands_sign_and_verify(
    finished: Finished, one: Finalist, keys: tuple[Path, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    state = str(Workspace.of(finished.settings).state)
    weights = one.selection.candidate_digest
    verify = ["verify-signatures", weights, "--public-key", str(keys[1]), "--state", state]
    assert cli.call(verify) == 2 and "not signed" in capsys.readouterr().out
    assert cli.call(["sign", weights, "--key", str(keys[0]), "--state", state]) == 0
    assert cli.call(verify) == 0 and "every signature holds" in capsys.readouterr().out
    whole = ["lineage", "verify", "--state", state, "--public-key"]
    assert cli.call([*whole, str(keys[1])]) == 0
    stranger = write_key(tmp_path, "stranger")[1]
    assert cli.call([*whole, str(stranger)]) == 1
    assert "not signed by key" in capsys.readouterr().out


def test_a_promotion_can_require_a_signature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IAR_STATE", raising=False)
    books = Books(fresh_store(tmp_path / "state"))
    private, public = write_key(tmp_path, "release")
    run_file = books.finish("one", register={"require_signature": str(public)})
    one = finalist(run_file)
    scores = Lineage("scores", digest_json(to_json(one.scores)), "pick on test", to_json(one.scores))
    books.registry.record([scores], PRODUCER)

    with pytest.raises(UserError, match=r"not promoted, signature: .*not signed; .*sign it with iar sign RUN.yaml"):
        promote(run_file, "champion")
    sign_run(one, books.registry, private)
    moved = promote(run_file, "champion")
    assert moved.version == "1" and moved.gates[-1].name == "signature" and moved.gates[-1].status == "pass"
