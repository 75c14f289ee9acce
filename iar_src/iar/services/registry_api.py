"""The registry as a service that is only read: pages of entries, edges and events, behind one token.

Every answer is JSON but for the browser page, which holds no data and asks this interface. There is no statement here
that writes, and no text of a request becomes part of a query.
"""

import hashlib
import hmac
import re
from base64 import b64encode
from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Path, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from iar import __version__
from iar.errors import IarError, TemporaryError, UserError
from iar.services.lineage import SHOWN_SIBLINGS, render_downstream, render_upstream
from iar.services.registry import Registry
from iar.services.registry_answers import (
    Activities,
    ActivityOut,
    EdgeOut,
    Edges,
    Entries,
    Entry,
    EventOut,
    Events,
    Problem,
    TreeRow,
)
from iar.services.registry_pages import activities as activities_of
from iar.services.registry_pages import activities_page, edges_page, events_page, page
from iar.services.registry_records import Producer

MOST_A_PAGE = 500
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}
ID = r"^([a-z-]{1,32}:)?[0-9a-f]{1,64}$"
ACTIVITY = r"^[0-9a-f]{64}$"
DIGEST = r"^([0-9a-f]{64})?$"
EDGE_PLACE = r"^([0-9]{1,18}:[^:\x00-\x1f]{1,100}:[0-9]{1,18})?$"
KIND = r"^[a-z-]{0,32}$"
TEXT = r"^[^\x00]*$"
END = -1


def api(registry: Registry, token: str) -> FastAPI:
    """Return the application; `token` "" = everybody may read, which only a service on the loopback may do."""
    app = FastAPI(
        title="IAR provenance registry",
        version=__version__,
        description="What was made, from what, by which run. Read-only.",
        docs_url=None,  # its pages load scripts from elsewhere
        redoc_url=None,
    )
    app.state.registry, app.state.token = registry, token
    app.middleware("http")(_with_headers)
    app.exception_handler(IarError)(_refusal)
    app.include_router(PUBLIC)
    app.include_router(SECURED)
    return app


async def _with_headers(request: Request, follow: Callable[[Request], Awaitable[Response]]) -> Response:
    answer = await follow(request)
    for name, value in HEADERS.items():
        answer.headers.setdefault(name, value)
    return answer


async def _refusal(request: Request, error: Exception) -> JSONResponse:
    """Answer an expected error: 404 for an id that names nothing, 503 for a database that fails."""
    code = 404 if isinstance(error, UserError) else 503 if isinstance(error, TemporaryError) else 500
    return JSONResponse({"detail": str(error)}, code)


def _authorise(
    request: Request,
    given: Annotated[
        HTTPAuthorizationCredentials | None,
        Depends(HTTPBearer(auto_error=False, description="The token of IAR_API_TOKEN or --token-file.")),
    ],
) -> None:
    token: str = request.app.state.token
    if token and not (given and hmac.compare_digest(given.credentials.encode(), token.encode())):
        raise HTTPException(401, "no token, or not the right one", {"WWW-Authenticate": "Bearer"})


def _registry(request: Request) -> Registry:
    registry: Registry = request.app.state.registry
    return registry


REFUSED: dict[int | str, dict[str, Any]] = {code: {"model": Problem} for code in (401, 404, 503)}
PUBLIC = APIRouter()
SECURED = APIRouter(prefix="/v1", dependencies=[Depends(_authorise)], responses=REFUSED)
Held = Annotated[Registry, Depends(_registry)]
EntryId = Annotated[str, Path(alias="id", pattern=ID, description="kind:digits, digits, or a whole digest.")]
Limit = Annotated[int, Query(ge=1, le=MOST_A_PAGE)]
Place = Annotated[int, Query(ge=0, le=2**31 - 1)]
EdgePlace = Annotated[str, Query(pattern=EDGE_PLACE, description="`next` of the page before.")]
ActivityId = Annotated[str, Path(alias="id", pattern=ACTIVITY, description="The whole digest.")]
Subject = Annotated[str, Query(max_length=300, pattern=TEXT, description="Digest, run or MODEL@ALIAS.")]
Direction = Literal["upstream", "downstream"]


@PUBLIC.get("/", response_class=HTMLResponse, include_in_schema=False)
def browser() -> HTMLResponse:
    """Show the page; it holds no data and asks for the token."""
    text = browser_page()
    return HTMLResponse(text, headers={"Content-Security-Policy": content_policy(text)})


@PUBLIC.get("/healthz")
def health() -> dict[str, str]:
    """Say that the service runs; it looks at nothing and needs no token."""
    return {"status": "ok"}


@SECURED.get("/entries")
def entries(
    registry: Held,
    kind: Annotated[str, Query(pattern=KIND)] = "",
    after: Annotated[str, Query(pattern=DIGEST)] = "",
    limit: Limit = 100,
) -> Entries:
    """List the entries of a kind, or all, by digest."""
    found = page(registry, kind, after, limit + 1)
    items = [Entry(**vars(one)) for one in found[:limit]]
    return Entries(items=items, next=items[-1].digest if len(found) > limit else "")


@SECURED.get("/entries/{id}")
def entry(registry: Held, id_: EntryId) -> Entry:
    """Show the entry that an id names."""
    return Entry(**vars(registry.find(id_)))


@SECURED.get("/entries/{id}/edges")
def edges(
    registry: Held, id_: EntryId, direction: Direction = "upstream", after: EdgePlace = "", limit: Limit = 100
) -> Edges:
    """List every edge on a way down to the sources of an entry, or up to what was made from it."""
    digest = registry.find(id_).digest
    found, follows = edges_page(registry, digest, direction == "upstream", after, limit)
    return Edges(items=[EdgeOut(**vars(one)) for one in found], next=follows)


@SECURED.get("/entries/{id}/tree")
def tree(registry: Held, id_: EntryId, direction: Direction = "upstream") -> list[TreeRow]:
    """Show what an entry was made from, or what was made from it, as `iar lineage` does."""
    render = render_upstream if direction == "upstream" else render_downstream
    rows = render(registry, registry.find(id_).digest, SHOWN_SIBLINGS)
    return [TreeRow(**{name: getattr(row, name) for name in TreeRow.model_fields}) for row in rows]


@SECURED.get("/activities")
def activities(registry: Held, run: Subject = "", after: Place = 0, limit: Limit = 100) -> Activities:
    """List what was done by a run, or all, failures included."""
    found = activities_page(registry, run, after, limit + 1)
    items = [_activity(one) for _, one in found[:limit]]
    return Activities(items=items, next=found[limit - 1][0] if len(found) > limit else END)


@SECURED.get("/activities/{id}")
def activity(registry: Held, id_: ActivityId) -> ActivityOut:
    """Show the activity that an edge names."""
    if not (found := activities_of(registry, [id_])):
        raise UserError(f"activity {id_[:12]}: no such activity")
    return _activity(found[id_])


def _activity(one: Producer) -> ActivityOut:
    return ActivityOut(id=one.id, **vars(one))


@SECURED.get("/events")
def events(
    registry: Held,
    subject: Subject = "",
    after: Place = 0,
    limit: Limit = 100,
) -> Events:
    """List events in order, of a subject or all."""
    found = events_page(registry, subject, after, limit + 1)
    items = [EventOut(**vars(event)) for event in found[:limit]]
    return Events(items=items, next=items[-1].id if len(found) > limit else END)


def browser_page() -> str:
    """Return the page; it loads nothing, and shows whatever it is sent as text."""
    return resources.files("iar.services").joinpath("registry_browser.html").read_text(encoding="utf-8")


def content_policy(page_text: str) -> str:
    """Return the policy under which exactly the script and the style of a page run, and it may ask its own server."""
    hashes = {
        tag: " ".join(
            f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
            for text in re.findall(rf"<{tag}>(.*?)</{tag}>", page_text, re.DOTALL)
        )
        for tag in ("script", "style")
    }
    return (
        f"default-src 'none'; script-src {hashes['script']}; style-src {hashes['style']}; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
