"""Turns failures of model calls into errors with one sentence and the way out.

The server's text is quoted in one short line, without control characters and without the API key,
which some servers echo.
"""

from __future__ import annotations

import errno
import re
import socket
import ssl
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import aiohttp
import msgspec

from retinue.errors import (
    ContextOverflow,
    EmptyReply,
    EndpointUnusable,
    ModelError,
    ModelTimeout,
    Overloaded,
    ProviderError,
    RateLimited,
    RequestRefused,
    UnknownModel,
    Unreachable,
)
from retinue.models.http.decoding import decode_or_text
from retinue.models.http.endpoint import Endpoint, without_userinfo
from retinue.models.http.retry_after import retry_after_s

_QUOTE_CHARS = 400
_MIN_SECRET_CHARS = 4

_OVERFLOW = re.compile(
    r"exceed_context_size_error"  # llama.cpp, as the error's type
    r"|context[_ ]length[_ ]exceeded"  # OpenAI, as the error's code
    r"|exceeds? (?:the |this |your )?(?:model'?s? |available |maximum )*context"
    r"|maximum context length"  # OpenAI, vLLM, OpenRouter
    r"|maximum model length|max_model_len"  # vLLM
    r"|model's context length is only"  # vLLM 0.16 and newer
    r"|input length .{0,40}exceeds"  # Ollama, SGLang
    r"|exceeds maximum context"  # Ollama
    r"|greater than the context length"  # LM Studio
    r"|when context the overflows"  # LM Studio, sic
    r"|n_keep.{0,12}>= ?n_ctx"  # LM Studio 0.4
    r"|longer than the model'?s context"  # SGLang
    r"|max_new_tokens\S* must be <="  # text-generation-inference
    r"|context (?:size|length|window) (?:has been |was |is )?exceeded|context overflow"
    r"|prompt is too long|input is too long|prompt too long"
    r"|maximum prompt length"
    r"|reduce the length of the (?:messages|input|prompt)"
    r"|input token count .{0,40}exceeds"
    r"|requested tokens .{0,20}exceed context window",  # llama-cpp-python
    re.IGNORECASE,
)
_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)
_QUOTA = frozenset(
    {
        "insufficient_quota",
        "billing_hard_limit_reached",
        "billing_not_active",
        "insufficient_credits",
        "billing_error",
    }
)
# A chat template refuses the conversation. llama.cpp answers that with a 500.
_TEMPLATE = re.compile(r"jinja|raise_exception|roles must alternate", re.IGNORECASE)
_ADVICE = tuple(
    (re.compile(pattern, re.IGNORECASE), advice)
    for pattern, advice in (
        (
            r"\b(?:reasoning[._ ])?effort\b|reasoning_effort",
            "Choose another effort in the model's name (+effort=…), or leave it out.",
        ),
        (
            r"(?:tools?|function(?: calling|s)?)\b.{0,40}\bnot support"
            r"|not support.{0,40}\b(?:tools?|function)|no endpoints.{0,20} support tool",
            "Choose a model that can call tools with -m; `retinue models` shows which can.",
        ),
        (
            r"\bmodel\b.{0,60}\b(?:not (?:exist|found|available|supported)|invalid|unknown)",
            "Check the model's name, or choose another model with -m.",
        ),
        (
            r"temperature|top_p|\bseed\b",
            "Leave that setting out of the role's sampling settings.",
        ),
    )
)
_RETRYABLE_4XX = frozenset({408, 409, 425})
_OVERLOADED = 529
# The status that a word in an error implies: errors inside a stream have no status of their own.
_IMPLIED = (
    ("overloaded", _OVERLOADED),
    ("rate_limit", 429),
    ("ratelimit", 429),
    ("authentication", 401),
    ("invalid_api_key", 401),
    ("permission_error", 403),
    ("not_found_error", 404),
    ("request_too_large", 413),
    ("invalid_request", 400),
    ("invalid_prompt", 400),
    ("badrequest", 400),
)


_NO_CREDIT = re.compile(
    r"credit balance is too low"  # Anthropic, with 400
    r"|insufficient.{0,12}(balance|credit|fund|quota)"  # DeepSeek, Z.ai, OpenRouter
    r"|used all available credits"  # xAI, with 403
    r"|exceeded_current_quota|out of credit|no resource package",  # Moonshot, Z.ai, with 429
    re.IGNORECASE,
)
_BAD_KEY = re.compile(
    # Gemini and xAI answer 400.
    r"api.key (is )?(not valid|invalid|expired)|(invalid|incorrect|expired) (x-)?api.key",
    re.IGNORECASE,
)
_REGION = re.compile(
    r"(country|region|territory|location)\b.{0,60}not (supported|allowed|available)"
    r"|not (supported|available).{0,40}\b(country|region|location)\b"
    r"|unsupported_country",
    re.IGNORECASE,
)
_API_VERSION = re.compile(
    r"api.version.{0,60}(not|unsupported|invalid)|unsupported api.version", re.IGNORECASE
)
_NO_MODEL = re.compile(
    r"model.not.exist|invalid model\b|not a valid model|unknown model|model_not_found"
    r"|model\b.{0,80}(does not exist|not found)",
    re.IGNORECASE,
)


class ErrorDetails(msgspec.Struct, frozen=True):
    """A server's message about a failure, parsed from any of the usual shapes."""

    message: str = ""
    kind: str = ""
    code: str = ""

    @property
    def status(self) -> int | None:
        return int(self.code) if re.fullmatch(r"[1-5]\d\d", self.code) else None

    @property
    def names(self) -> frozenset[str]:
        return frozenset({self.kind.lower(), self.code.lower()})

    @property
    def overflow(self) -> bool:
        return bool(_OVERFLOW.search(f"{self.kind} {self.code} {self.message}"))


def parse_error(value: Any) -> ErrorDetails:
    match value:
        case str():
            return ErrorDetails(value)
        case [first, *_]:
            return parse_error(first)
        case {"error": dict() | str() | list() as inner}:
            return parse_error(inner)
        case {"detail": detail} if "message" not in value:
            return parse_error(detail)
        case {"metadata": {"raw": str() | dict() as raw}}:
            return _gateway_error(value, raw)
        case dict():
            text = value.get("message") or value.get("msg") or value.get("error_description") or ""
            text = text if isinstance(text, str) else msgspec.json.encode(text).decode()
            place = value.get("loc")
            if isinstance(place, list) and place[1:]:
                # FastAPI names the field like this: ["body", "stream_options"].
                text = f"{'.'.join(map(str, place[1:]))}: {text}"
            return ErrorDetails(
                text,
                str(value.get("type") or value.get("status") or ""),
                str(value.get("code") or ""),
            )
        case None:
            return ErrorDetails()
        case _:
            return ErrorDetails(str(value))


def _gateway_error(value: dict[str, Any], raw: str | dict[str, Any]) -> ErrorDetails:
    """The error of the provider behind a gateway. OpenRouter's own says "Provider returned error".

    The status is the gateway's.
    """
    outer = parse_error({name: field for name, field in value.items() if name != "metadata"})
    inner = parse_error(raw if isinstance(raw, dict) else decode_or_text(raw.encode()))
    provider = value["metadata"].get("provider_name")
    named = f"{outer.message} ({provider})" if isinstance(provider, str) else outer.message
    return ErrorDetails(
        f"{named}: {inner.message}" if inner.message else named,
        inner.kind or inner.code or outer.kind,
        outer.code or inner.code,
    )


class ErrorMapper:
    """Makes the errors of one endpoint. Base URLs of its dialect end in `usual_suffix`."""

    def __init__(self, endpoint: Endpoint, *, usual_suffix: str = "/v1") -> None:
        self._endpoint = endpoint
        self._usual_suffix = usual_suffix
        self._address = endpoint.address
        self._secrets = tuple(_secrets(endpoint))

    def hide(self, key: str) -> None:
        """Never quote this key, which came after the endpoint was made."""
        if key not in self._secrets:
            self._secrets = (*self._secrets[-8:], key)

    # Connections

    def from_client_error(self, error: aiohttp.ClientError) -> ModelError:
        """Map an error of aiohttp. It may hold the request's headers, so it is not chained."""
        match error:
            case aiohttp.ClientProxyConnectionError():
                proxy = without_userinfo(self._endpoint.proxy or "")
                return Unreachable(
                    f"Cannot reach the proxy {proxy}: {_reason(error.os_error)}. "
                    "Start it, or correct the setting of the proxy.",
                    retryable=True,
                )
            case aiohttp.ClientHttpProxyError():
                return self._proxy_refused(error.status)
            case aiohttp.ClientConnectorCertificateError():
                return EndpointUnusable(
                    f"The certificate of {self._address} is not trusted: "
                    f"{_certificate_reason(error.certificate_error)}. If it is signed by an "
                    "authority of your own, give that as ca_file."
                )
            case aiohttp.ClientSSLError():
                reason = self._quote(_tls_reason(error.os_error))
                return EndpointUnusable(
                    f"TLS with {self._address} failed: {reason}. "
                    "Does the server speak https, or should the address begin with http://?"
                )
            case aiohttp.ClientConnectorDNSError():
                # Only "try again" is temporary; a name that does not exist stays unknown.
                temporary = error.os_error.errno == socket.EAI_AGAIN
                return (Unreachable if temporary else EndpointUnusable)(
                    f"Cannot reach {self._address}: the host name {error.host!r} cannot be "
                    "resolved. Check its spelling and the network, or choose another server with "
                    "-m.",
                    retryable=temporary,
                )
            case aiohttp.ClientConnectorError():
                return Unreachable(
                    f"Cannot reach {self._address}: {_reason(error.os_error)}. Start the server or "
                    "choose another with -m.",
                    retryable=True,
                )
            case aiohttp.ConnectionTimeoutError():
                return Unreachable(
                    f"Cannot reach {self._address}: no connection within "
                    f"{self._endpoint.connect_timeout_s:g} s. Check the address and the network, "
                    "or choose another server with -m.",
                    retryable=True,
                )
            case aiohttp.ClientResponseError():
                return EndpointUnusable(
                    f"{self._address} did not answer in HTTP. Is another kind of server on that "
                    "port? Check the base URL."
                )
            case aiohttp.ClientPayloadError():
                return self.incomplete_reply()
            case _:
                return ProviderError(
                    f"{self._address} closed the connection without an answer. If it does so "
                    "again, look into the server's log.",
                    retryable=True,
                )

    def _proxy_refused(self, status: int) -> ModelError:
        proxy = without_userinfo(self._endpoint.proxy or "")
        if status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
            return EndpointUnusable(
                f"The proxy {proxy} wants a user name and a password ({_phrase(status)}). Write "
                "them into its URL: http://USER:PASSWORD@HOST:PORT."
            )
        return EndpointUnusable(
            f"The proxy {proxy} would not connect to {self._address} ({_phrase(status)}). Check "
            "the address, and whether the proxy allows it.",
            retryable=status >= 500,
        )

    # Status codes

    def from_response(self, status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
        """Map a response whose status is not 2xx."""
        if 300 <= status < 400:
            target = self._quote(without_userinfo(headers.get("location", "elsewhere")))
            return EndpointUnusable(
                f"{self._address} redirects to {target}. Redirects are not followed, because the "
                "API key would be sent along: set the base URL to where the API is."
            )
        return self._by_status(status, self._parse_body(body), headers)

    def from_error_value(self, value: Any) -> ModelError:
        """Map an error inside a response with status 200; `value` is its decoded JSON."""
        details = parse_error(value)
        words = " ".join(details.names)
        implied = next((status for word, status in _IMPLIED if word in words), 500)
        implied = 400 if details.overflow else implied
        return self._by_status(details.status or implied, details, {})

    def _by_status(
        self, status: int, details: ErrorDetails, headers: Mapping[str, str]
    ) -> ModelError:
        quote = self._quote_details(details)
        wait_s = retry_after_s(headers, details.message)
        told = f"{details.message} {details.kind} {details.code}"
        problem = None if status >= 500 else self._setup_problem(status, details, told, quote)
        if problem is not None:
            return problem
        if status == 429:
            return RateLimited(
                f"{self._address} limits the rate of requests.{quote} Wait, or run fewer agents at "
                "once.",
                retry_after_s=wait_s,
            )
        if status == _OVERLOADED:
            return RateLimited(
                f"{self._address} is overloaded ({_OVERLOADED}).{quote} Wait, or choose another "
                "model with -m.",
                retry_after_s=wait_s,
            )
        if details.overflow or status == 413:
            return ContextOverflow(
                f"The prompt is larger than the context window of {self._endpoint.model!r} at "
                f"{self._address}.{quote} Shorten it, or serve the model with a larger window."
            )
        # OpenRouter answers 404 if no host of the model has tools.
        has_no_tools = "support tool" in details.message
        if (status == 404 and not has_no_tools) or (status < 500 and _NO_MODEL.search(told)):
            return self._not_found(status, quote)
        if status >= 500 and not _TEMPLATE.search(details.message):
            # 503: the server has too much to do, or is still loading its model.
            kind = Overloaded if status == HTTPStatus.SERVICE_UNAVAILABLE else ProviderError
            return kind(
                f"{self._address} failed ({_phrase(status)}).{quote} If it does so again, look "
                "into the server's log.",
                retryable=True,
                retry_after_s=wait_s,
            )
        refused = f"{self._address} refused the request ({_phrase(status)}).{quote}"
        if status in _RETRYABLE_4XX:
            return ProviderError(refused, retryable=True, retry_after_s=wait_s)
        return RequestRefused(f"{refused} {_advice(details.message)}", retry_after_s=wait_s)

    def _setup_problem(
        self, status: int, details: ErrorDetails, told: str, quote: str
    ) -> ModelError | None:
        """A problem that the user solves with another key, address or model."""
        endpoint, phrase = self._endpoint, _phrase(status)
        if (
            details.names & _QUOTA
            or status == HTTPStatus.PAYMENT_REQUIRED
            or _NO_CREDIT.search(told)
        ):
            of_key = f" to the account of {endpoint.key_source}" if endpoint.key_source else ""
            return EndpointUnusable(
                f"The quota at {self._address} is used up.{quote} Add credit{of_key}, or choose "
                "another model with -m."
            )
        if _REGION.search(told):
            return EndpointUnusable(
                f"{self._address} does not serve {endpoint.model!r} in this region ({phrase})."
                f"{quote} Change {self._address_setting}, or choose another model with -m."
            )
        if _API_VERSION.search(told):
            return EndpointUnusable(
                f"{self._address} does not accept this version of its API ({phrase}).{quote} "
                f"Change {self._address_setting}."
            )
        if status in (401, 403) or (status == HTTPStatus.BAD_REQUEST and _BAD_KEY.search(told)):
            return self._key_refused(status, quote)
        return None

    @property
    def _address_setting(self) -> str:
        return self._endpoint.url_source or "the address in the model's name"

    def _key_refused(self, status: int, quote: str) -> ModelError:
        source = self._endpoint.key_source
        if not self._endpoint.api_key and self._endpoint.read_key is None:
            where = f"in {source}" if source else "for this endpoint"
            return EndpointUnusable(
                f"{self._address} wants an API key ({_phrase(status)}). Set one {where}.{quote}"
            )
        which = f"the API key from {source}" if source else "the API key"
        return EndpointUnusable(
            f"{self._address} refused {which} ({_phrase(status)}). Set a key that is valid there "
            f"and may use {self._endpoint.model!r}.{quote}"
        )

    def _not_found(self, status: int, quote: str) -> ModelError:
        path = self._address.rstrip("/").rpartition("/")[2]
        hint = (
            f"is {self._endpoint.url_source or 'the base URL'} right?"
            if not self._usual_suffix or re.fullmatch(r"v\d\w*", path)
            else f"is the base URL {self._address.rstrip('/')}{self._usual_suffix}?"
        )
        return UnknownModel(
            f"{self._address} has no model {self._endpoint.model!r}, or no API at that path "
            f"({_phrase(status)}).{quote} Check the model's name, and the address: {hint}"
        )

    # Bodies and streams

    def not_an_api(self, body: bytes) -> ModelError:
        """Map a response with status 200 that is neither JSON nor events."""
        usual = f" It usually ends in {self._usual_suffix}." if self._usual_suffix else ""
        if self._endpoint.url_source:
            usual += f" Correct {self._endpoint.url_source}."
        if _is_web_page(body):
            return EndpointUnusable(
                f"{self._address} answered a web page, not JSON: is {self._address} the API's base "
                f"URL?{usual}"
            )
        return EndpointUnusable(
            f"{self._address} answered something that is not JSON: "
            f"{self._quote(body.decode('utf-8', 'replace'))!r}. Is that the API's base URL?{usual}"
        )

    def incomplete_reply(self) -> ModelError:
        return ProviderError(
            f"The reply of {self._address} broke off in the middle. If it does so again, look into "
            "the server's log.",
            retryable=True,
        )

    def empty_reply(self) -> ModelError:
        return EmptyReply(
            f"{self._address} sent an empty reply. If it does so again, see whether the prompt "
            f"fits the context window that {self._endpoint.model!r} was loaded with.",
            retryable=True,
        )

    def invalid_json(self, data: bytes) -> ModelError:
        shown = self._quote(data[:2000].decode("utf-8", "replace").strip(), limit=80)
        return ProviderError(
            f"{self._address} sent broken JSON: {shown!r}. If it does so again, look into the "
            "server's log.",
            retryable=True,
        )

    def too_large(self) -> ModelError:
        return ProviderError(
            f"{self._address} sent more data than any reply has, and was cut off. Is that a model "
            "server?"
        )

    def content_filtered(self, why: str = "") -> ModelError:
        return ProviderError(
            f"{self._address} withheld the reply by its content filter."
            f"{self._quote_details(ErrorDetails(why))}"
            " Word the task differently, or choose another model with -m."
        )

    def first_token_timeout(self, waited_s: float) -> ModelError:
        return ModelTimeout(
            f"{self._address} did not begin to reply within {waited_s:g} s. If the server is only "
            f"slow, raise first_byte_timeout_s.{self._billing_note}"
        )

    def idle_timeout(self, waited_s: float, *, begun: bool) -> ModelError:
        when, setting = (
            ("in the middle of its reply", "idle_timeout_s")
            if begun
            else ("before its reply", "first_byte_timeout_s")
        )
        return ModelTimeout(
            f"{self._address} went silent {when} for {waited_s:g} s. If the server is only slow, "
            f"raise {setting}.{self._billing_note}"
        )

    @property
    def _billing_note(self) -> str:
        """A note on the cost of a timeout, for a server with a key; others usually cost nothing."""
        if not self._endpoint.api_key and self._endpoint.read_key is None:
            return ""
        return " The provider may bill this request, and the prompt again if it is retried."

    def client_closed(self) -> ModelError:
        return ProviderError(f"The client of {self._address} was closed before this call.")

    # Texts

    def _parse_body(self, body: bytes) -> ErrorDetails:
        if _is_web_page(body):
            title = _TITLE.search(body.decode("utf-8", "replace"))
            return ErrorDetails(f"a web page: {title[1].strip()}" if title else "a web page")
        try:
            return parse_error(msgspec.json.decode(body))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return ErrorDetails(body.decode("utf-8", "replace"))

    def _quote_details(self, details: ErrorDetails) -> str:
        text = self._quote(details.message or details.kind or details.code)
        if not text:
            return ""
        return f" It said: {text}" + ("" if text[-1] in ".!?" else ".")

    def _quote(self, text: str, limit: int = _QUOTE_CHARS) -> str:
        # Before the text is shortened, since half of a key is a secret too.
        for secret in self._secrets:
            text = text.replace(secret, "***")
        text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
        return text if len(text) <= limit else text[: limit - 1] + "…"


def _advice(told: str) -> str:
    """Advice after a refusal, by the server's message."""
    if not told:
        return "Check the model's name and the server's settings."
    found = (advice for pattern, advice in _ADVICE if pattern.search(told))
    return next(found, "If you cannot change that, choose another model with -m.")


def _secrets(endpoint: Endpoint) -> list[str]:
    found = [(endpoint.api_key or "").strip()]
    for url in (endpoint.base_url, endpoint.proxy or ""):
        authority = url.partition("://")[2].partition("/")[0]
        userinfo = authority.rpartition("@")[0]
        found += [userinfo, userinfo.partition(":")[2]]
    # Shorter keys are placeholders such as "x"; replacing them would garble the text.
    return [secret for secret in found if len(secret) >= _MIN_SECRET_CHARS]


def _is_web_page(body: bytes) -> bool:
    return body[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<")


def _phrase(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _reason(error: OSError) -> str:
    match error.errno:
        case errno.ECONNREFUSED:
            return "connection refused"
        case errno.ECONNRESET:
            return "connection reset"
        case errno.ENETUNREACH | errno.EHOSTUNREACH:
            return "no route to the host"
        case _:
            # asyncio's own text is "Connect call failed ('127.0.0.1', 8080)".
            if "Multiple exceptions" in str(error):
                return (
                    "connection refused"
                    if f"[Errno {errno.ECONNREFUSED}]" in str(error)
                    else "no connection"
                )
            return (error.strerror or "no connection").rstrip(".").lower()


def _certificate_reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message.rstrip(".")
    return str(error)


def _tls_reason(error: OSError) -> str:
    reason = getattr(error, "reason", None)
    return reason.replace("_", " ").lower() if isinstance(reason, str) else str(error)
