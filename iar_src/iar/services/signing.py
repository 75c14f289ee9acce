"""Signatures: DSSE envelopes around in-toto statements, and keys on the P-256, P-384 and P-521 curves.

A private key is read when something is signed and held no longer; its path and its bytes are written nowhere.
"""

import binascii
import json
import os
from base64 import b64decode, b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iar.errors import UserError
from iar.methods.attestation import PAYLOAD_TYPE, pre_authentication
from iar.methods.digest import canonical_json, digest_bytes

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import (
        EllipticCurvePrivateKey,
        EllipticCurvePublicKey,
        EllipticCurveSignatureAlgorithm,
    )

PASSWORD = "IAR_KEY_PASSWORD"
CURVES = {"secp256r1": "SHA256", "secp384r1": "SHA384", "secp521r1": "SHA512"}
MAKE_KEY = "make one: openssl ecparam -genkey -name prime256v1 -noout -out key.pem"
MAKE_PUBLIC = "write it: openssl ec -in key.pem -pubout -out public.pem"
SHOWN_KEY_DIGITS = 12


def read_private_key(path: Path) -> "EllipticCurvePrivateKey":
    """Return the key of a PEM file; its password, if it has one, is in IAR_KEY_PASSWORD. Raises UserError."""
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    password = os.environ.get(PASSWORD, "").encode() or None
    try:
        key = load_pem_private_key(_read(path, "--key"), password)
    except TypeError as error:
        wrong = "is not encrypted; unset" if password else "is encrypted; set"
        raise UserError(f"--key {path}: {wrong} {PASSWORD}") from error
    except ValueError as error:
        raise UserError(f"--key {path}: no private key in PEM, or another password; {MAKE_KEY}") from error
    if not isinstance(key, EllipticCurvePrivateKey) or key.curve.name not in CURVES:
        raise UserError(f"--key {path}: not a key on P-256, P-384 or P-521; {MAKE_KEY}")
    return key


def read_public_key(path: Path) -> "EllipticCurvePublicKey":
    """Return the public key of a PEM file. Raises UserError."""
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(_read(path, "public key"))
    except ValueError as error:
        raise UserError(f"public key {path}: no public key in PEM; {MAKE_PUBLIC}") from error
    if not isinstance(key, EllipticCurvePublicKey) or key.curve.name not in CURVES:
        raise UserError(f"public key {path}: not a key on P-256, P-384 or P-521; {MAKE_KEY}")
    return key


def key_id(key: "EllipticCurvePublicKey") -> str:
    """Return the SHA-256 of a public key in DER: what names the key in an envelope."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return digest_bytes(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))


def envelope_of(statement: dict[str, Any], key: "EllipticCurvePrivateKey") -> dict[str, Any]:
    """Return the DSSE envelope of a statement."""
    body = canonical_json(statement).encode()
    signature = key.sign(pre_authentication(PAYLOAD_TYPE, body), _algorithm(key.curve.name))
    signed = {"keyid": key_id(key.public_key()), "sig": b64encode(signature).decode()}
    return {"payload": b64encode(body).decode(), "payloadType": PAYLOAD_TYPE, "signatures": [signed]}


def open_envelope(envelope: Any, key: "EllipticCurvePublicKey") -> dict[str, Any]:
    """Return the statement of an envelope that this key signed. Raises UserError, which says what is wrong."""
    from cryptography.exceptions import InvalidSignature

    try:
        body = b64decode(envelope["payload"], validate=True)
        signed = pre_authentication(str(envelope["payloadType"]), body)
        signatures = [b64decode(one["sig"], validate=True) for one in envelope["signatures"]]
    except (KeyError, TypeError, binascii.Error) as error:
        raise UserError("the envelope is damaged") from error
    for signature in signatures:
        try:
            key.verify(signature, signed, _algorithm(key.curve.name))
        except InvalidSignature:
            continue
        statement = json.loads(body)
        if envelope["payloadType"] == PAYLOAD_TYPE and isinstance(statement, dict):
            return statement
    raise UserError(f"the signature is not one of key {key_id(key)[:SHOWN_KEY_DIGITS]} over this statement")


def _algorithm(curve: str) -> "EllipticCurveSignatureAlgorithm":
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA

    return ECDSA(getattr(hashes, CURVES[curve])())


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{what} {path}: {error.strerror}; name a PEM file") from error
