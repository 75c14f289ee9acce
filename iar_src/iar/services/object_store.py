"""Objects below one place of an S3 bucket: whole or absent, cut transfers taken up where they stood.

The only module that speaks S3. Address and keys come from where AWS's own tools look for them: AWS_ENDPOINT_URL,
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, the files in ~/.aws, or the role of the machine.
"""

import contextlib
import functools
import hashlib
import importlib.util
import re
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from iar.config import STORE, STORE_IN_WORDS
from iar.errors import IarError, PermanentError, TemporaryError, UserError
from iar.services.workspace import sync

# Larger files go up in parts of this size, which S3 allows from 5 MiB on. A cut repeats at most one part a thread.
PART_BYTES = 8 << 20
MOST_PARTS = 10_000
# S3 copies an object of up to 5 GiB in one request, and larger ones in parts of at most as much.
COPIED_BYTES = 1 << 30
BLOCK_BYTES = 1 << 20
THREADS = 8
# A stream that breaks without a byte gained, this often in a row, is given up; requests have tries of their own.
BROKEN_STREAMS = 4
REQUEST_TRIES = 4
CONNECT_SECONDS = 10
READ_SECONDS = 60
DELETED_AT_ONCE = 1000
CREDENTIALS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
ACCESS = f"check the bucket's policy and AWS_ENDPOINT_URL, and {CREDENTIALS}"


class _UploadGone(TemporaryError):
    """An upload in parts is no longer known: completed or given up by somebody else."""


class Bucket:
    """The objects below one place, by name relative to it; safe to use from several threads.

    Raises UserError where the bucket, the credentials or the rights are missing, TemporaryError where the server or
    the network fails, with the place in it and never a key.
    """

    def __init__(self, place: str) -> None:
        found = re.fullmatch(STORE, place)
        if not found:
            raise UserError(f"{place}: no place in S3; write it as {STORE_IN_WORDS}")
        if importlib.util.find_spec("boto3") is None:
            raise UserError(f"{place}: an S3 store needs the package boto3; pip install 'iar[store]'")
        self.place = place.rstrip("/")
        self._bucket, prefix = found["bucket"], (found["prefix"] or "").strip("/")
        self._prefix = f"{prefix}/" if prefix else ""

    @functools.cached_property
    def _client(self) -> Any:
        """Opened by the first request, which is made before threads share this."""
        return _open_client(self.place)

    def read(self, name: str, most: int | None = None) -> bytes | None:
        """Return the bytes of a small object, the first `most` where given; None where there is none."""
        from botocore.exceptions import ResponseStreamingError

        with self._explained("reading", name):
            try:
                found = self._get(name, 0)
                return None if found is None else bytes(found.read(most))
            except ResponseStreamingError:  # the client repeats requests, and leaves streams that break to us
                found = self._get(name, 0)
                return None if found is None else bytes(found.read(most))

    def create(self, name: str, data: bytes) -> bool:
        """Write a small object unless there is one, in one step; return whether it was written."""
        from botocore.exceptions import ClientError

        with self._explained("writing", name):
            try:
                self._client.put_object(**self._named(name), Body=data, IfNoneMatch="*")
            except ClientError as error:
                if _code(error) in ("PreconditionFailed", "ConditionalRequestConflict"):
                    return False
                if _code(error) != "NotImplemented":
                    raise
                # A server without conditional writes: the last writer's object stands, whole like any other.
                self._client.put_object(**self._named(name), Body=data)
        return True

    def write(self, name: str, data: bytes) -> None:
        """Write a small object in place of any other."""
        with self._explained("writing", name):
            self._client.put_object(**self._named(name), Body=data)

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return name -> bytes of the objects whose names begin with `prefix`, a request a thousand of them."""
        return {name: size for name, size, _ in self.listing(prefix)}

    def listing(self, prefix: str = "") -> Iterator[tuple[str, int, str]]:
        """Yield name, bytes and ETag of the objects whose names begin with `prefix`, in the order of their names."""
        with self._explained("listing", prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix + prefix
            )
            for page in pages:
                for item in page.get("Contents", ()):
                    yield item["Key"].removeprefix(self._prefix), item["Size"], item["ETag"].strip('"')

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects in the order given, a request a thousand; one that is gone already is no error."""
        rest = [{"Key": self._prefix + name} for name in names]
        while rest:
            now, rest = rest[:DELETED_AT_ONCE], rest[DELETED_AT_ONCE:]
            with self._explained("deleting", now[0]["Key"].removeprefix(self._prefix)):
                answer = self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": now, "Quiet": True})
            for failed in answer.get("Errors", ()):
                raise UserError(f"deleting s3://{self._bucket}/{failed['Key']}: {failed.get('Code')}; {ACCESS}")

    def unfinished(self, prefix: str) -> dict[str, str]:
        """Return name -> upload id of the uploads in parts that were begun below `prefix` and not completed."""
        with self._explained("listing", prefix):
            pages = self._client.get_paginator("list_multipart_uploads").paginate(
                Bucket=self._bucket, Prefix=self._prefix + prefix
            )
            found = [item for page in pages for item in page.get("Uploads", ())]
        return {item["Key"].removeprefix(self._prefix): item["UploadId"] for item in found}

    def abort(self, name: str, upload: str) -> None:
        """Give up an upload in parts; the server then drops its parts."""
        from botocore.exceptions import ClientError

        with self._explained("deleting", name):
            try:
                self._client.abort_multipart_upload(**self._named(name), UploadId=upload)
            except ClientError as error:
                if _code(error) != "NoSuchUpload":
                    raise

    def clear(self, prefix: str) -> None:
        """Delete all objects below `prefix`, and the uploads in parts that were begun there."""
        self.delete(sorted(self.sizes(prefix)))
        for name, upload in self.unfinished(prefix).items():
            self.abort(name, upload)

    def copy(self, source: str, name: str) -> bool:
        """Write an object as a copy of another, within the server; return False where it has none or does not copy."""
        from boto3.s3.transfer import TransferConfig
        from botocore.exceptions import ClientError

        config = TransferConfig(multipart_threshold=COPIED_BYTES, multipart_chunksize=COPIED_BYTES)
        with self._explained("copying", source):
            try:
                self._client.copy(self._named(source), **self._named(name), Config=config)
            except ClientError:  # gone, no right to, or not known to this server: who asked has the bytes, too
                return False
        return True

    def upload(self, path: Path, name: str) -> None:
        """Write a file of at most PART_BYTES as one object."""
        with self._explained("writing", name):
            self._client.put_object(**self._named(name), Body=path.read_bytes())

    def upload_parts(self, path: Path, name: str, begun: str, pool: Executor, stop: threading.Event) -> None:
        """Write a file as one object, in parts by the threads of `pool`; `begun` is an upload to go on with, or "".

        The name must stand for the bytes (a digest): parts that are there already are taken as they are. Returns
        early, with nothing written but parts, once `stop` is set.
        """
        try:
            self._send_parts(path, name, begun, pool, stop)
        except _UploadGone as error:
            # Another writer of the same bytes went on with the same upload and was faster.
            if name not in self.sizes(name):
                raise TemporaryError(str(error)) from error

    def _send_parts(self, path: Path, name: str, begun: str, pool: Executor, stop: threading.Event) -> None:
        size = path.stat().st_size
        part_bytes = max(PART_BYTES, -(-size // MOST_PARTS))
        with self._explained("writing", name):
            upload = begun or self._client.create_multipart_upload(**self._named(name))["UploadId"]
            there = self._parts(name, upload) if begun else {}
        starts = dict(enumerate(range(0, size, part_bytes), start=1))

        def send(number: int) -> None:
            length = min(part_bytes, size - starts[number])
            if stop.is_set() or there.get(number, {}).get("Size") == length:
                return
            with self._explained("writing", name), path.open("rb") as file:
                file.seek(starts[number])
                there[number] = self._client.upload_part(
                    **self._named(name), UploadId=upload, PartNumber=number, Body=file.read(length)
                )

        for _ in pool.map(send, starts):
            pass
        if stop.is_set():
            return
        parts = [_part(number, there[number]) for number in starts]
        with self._explained("writing", name):
            self._client.complete_multipart_upload(
                **self._named(name), UploadId=upload, MultipartUpload={"Parts": parts}
            )

    def download(self, name: str, path: Path, size: int, sha256: str) -> bool:
        """Write an object to a file, which appears only with the right digest; a cut download goes on where it stood.

        Returns whether there is such an object. Raises PermanentError where it has other bytes.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")
        again = part.exists()
        found = self._fill(part, name, size)
        if found != sha256 and again:  # what was there may be damaged
            part.unlink()
            found = self._fill(part, name, size)
        if found != sha256:
            part.unlink()
            if not found:
                return False
            raise PermanentError(
                f"{self.place}/{name}: its bytes were changed: SHA-256 {found[:12]}, not {sha256[:12]}"
            )
        sync(part)
        part.replace(path)
        return True

    def fetch(self, name: str, path: Path, size: int) -> None:
        """Write an object of `size` bytes to a file in place of any other; a cut download goes on where it stood."""
        path.unlink(missing_ok=True)
        if not self._fill(path, name, size):
            raise self.gone(name)

    def gone(self, name: str) -> PermanentError:
        """Return what to raise where an object is missing that should be there."""
        return PermanentError(f"{self.place}/{name}: is gone, though a manifest lists it")

    def probe(self) -> None:
        """Write, read and delete one small object."""
        name, said = f"iar-doctor-{secrets.token_hex(4)}", b"written by iar doctor"
        self.write(name, said)
        read = self.read(name)
        self.delete([name])
        if read != said:
            raise UserError(f"{self.place}: other bytes came back than were written; look at what lies in between")

    def _named(self, name: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + name}

    def _get(self, name: str, start: int) -> Any:
        """Return the stream of an object's bytes from `start` on; None where there is no object."""
        from botocore.exceptions import ClientError

        ranged = {"Range": f"bytes={start}-"} if start else {}
        try:
            return self._client.get_object(**self._named(name), **ranged)["Body"]
        except ClientError as error:
            if _code(error) == "NoSuchKey":
                return None
            raise

    def _fill(self, part: Path, name: str, size: int) -> str:
        """Append to `part` what it lacks of the object; return the SHA-256 of all of it, "" where there is none."""
        digest, broken = hashlib.sha256(), 0
        with part.open("ab+") as file:
            file.seek(0)
            while block := file.read(BLOCK_BYTES):
                digest.update(block)
            while (start := file.tell()) < size:
                try:
                    with self._explained("reading", name):
                        stream = self._get(name, start)
                        if stream is None:
                            return ""
                        for block in stream.iter_chunks(BLOCK_BYTES):
                            file.write(block)
                            digest.update(block)
                    break
                except TemporaryError:
                    broken = 0 if file.tell() > start else broken + 1
                    if broken == BROKEN_STREAMS:
                        raise
        return digest.hexdigest()

    def _parts(self, name: str, upload: str) -> dict[int, dict[str, Any]]:
        pages = self._client.get_paginator("list_parts").paginate(**self._named(name), UploadId=upload)
        return {part["PartNumber"]: part for page in pages for part in page.get("Parts", ())}

    @contextlib.contextmanager
    def _explained(self, doing: str, name: str) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except (BotoCoreError, ClientError) as error:
            raise _refusal(f"{doing} {self.place}/{name}", error) from error


def probe(place: str) -> None:
    """Write, read and delete one small object at a place. Raises what `Bucket` raises."""
    Bucket(place).probe()


def _open_client(place: str) -> Any:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    config = Config(
        retries={"mode": "standard", "total_max_attempts": REQUEST_TRIES},
        connect_timeout=CONNECT_SECONDS,
        read_timeout=READ_SECONDS,
        max_pool_connections=THREADS,
    )
    try:
        return boto3.session.Session().client("s3", config=config)
    except (BotoCoreError, ValueError) as error:  # ValueError: an address that is none
        raise UserError(f"{place}: {_line(error)}; check AWS_ENDPOINT_URL, AWS_PROFILE and ~/.aws") from error


def _part(number: int, told: Mapping[str, Any]) -> dict[str, Any]:
    """Return what completes a part: its tag and, where the server keeps one, its checksum."""
    checksums = {key: value for key, value in told.items() if key.startswith("Checksum") and key != "ChecksumType"}
    return {"PartNumber": number, "ETag": told["ETag"]} | checksums


def _refusal(doing: str, error: Any) -> IarError:
    """Return the error in our terms: what was done where, the server's reason, the fix."""
    from botocore import exceptions as known

    if isinstance(error, known.ClientError):
        code, status = _code(error), int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        reason = f"{doing}: {error.response.get('Error', {}).get('Message') or code} ({code})".replace("\n", " ")
        if status >= 500 or status == 429 or code in ("SlowDown", "RequestTimeout", "Throttling"):
            return TemporaryError(f"{reason}; run the same command again")
        if code == "NoSuchUpload":
            return _UploadGone(f"{reason}; run the same command again")
        if code == "InvalidRange":
            return PermanentError(f"{doing}: the object is shorter than its manifest says")
        if code == "NoSuchBucket":
            return UserError(f"{reason}; make the bucket, or correct its name")
        if status in (301, 307) or code in ("AuthorizationHeaderMalformed", "IllegalLocationConstraintException"):
            return UserError(f"{reason}; set AWS_DEFAULT_REGION to the bucket's region")
        return UserError(f"{reason}; {ACCESS}")
    if isinstance(error, known.NoCredentialsError | known.PartialCredentialsError):
        return UserError(f"{doing}: no credentials; {CREDENTIALS}")
    if isinstance(error, known.HTTPClientError | known.ConnectionError | known.IncompleteReadError):
        return TemporaryError(f"{doing}: {_line(error)}; check AWS_ENDPOINT_URL and the network, then run again")
    return UserError(f"{doing}: {_line(error)}; {ACCESS}")


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
