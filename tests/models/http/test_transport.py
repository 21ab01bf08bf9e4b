"""Proxies and certificates."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from contextlib import nullcontext
from pathlib import Path

import pytest

from retinue.domain.messages import Request, UserMessage
from retinue.errors import ConfigError, ProviderError
from retinue.models.anthropic.model import AnthropicModel
from retinue.models.http.endpoint import Endpoint
from retinue.models.openai.model import OpenAIModel
from retinue.models.scripted.model import say
from retinue.testing.server import ModelServer
from tests.models.proxy import ForwardingProxy

HI = Request(messages=(UserMessage("Hi."),))


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    """A self-signed certificate for localhost, and a server's side of it."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("certificate")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-keyout", str(key), "-out", str(certificate), "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return certificate, context


async def test_proxy_is_used() -> None:
    async with ModelServer([say("x")]) as server, ForwardingProxy() as proxy:
        proxy_url = proxy.url.replace("//", "//bob:hunter22@")
        endpoint = Endpoint(base_url=server.base_url, model="m", proxy=proxy_url)
        async with OpenAIModel(endpoint) as model:
            reply = await model.reply(HI)
    assert reply.message.content == "x"
    (seen,) = proxy.requests
    assert seen.target == f"{server.base_url}/chat/completions"
    assert seen.headers["proxy-authorization"] == "Basic Ym9iOmh1bnRlcjIy"


async def test_proxy_of_the_environment_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ModelServer([say("x")]) as server, ForwardingProxy() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        async with OpenAIModel(Endpoint(base_url=server.base_url, model="m")) as model:
            await model.reply(HI)
    assert not proxy.requests


@pytest.mark.parametrize("client", [OpenAIModel, AnthropicModel])
async def test_tls_through_a_proxy(
    certificate: tuple[Path, ssl.SSLContext], client: type[OpenAIModel] | type[AnthropicModel]
) -> None:
    ca_file, tls = certificate
    async with ModelServer([say("x")], tls=tls) as server, ForwardingProxy() as proxy:
        endpoint = Endpoint(
            base_url=server.base_url,
            model="m",
            api_key="sk-secret",
            proxy=proxy.url,
            ca_file=str(ca_file),
        )
        async with client(endpoint) as model:
            reply = await model.reply(HI)
    assert reply.message.content == "x"
    assert "sk-secret" in str(server.requests[0].headers)
    (seen,) = proxy.requests
    assert (seen.method, seen.target) == ("CONNECT", f"localhost:{server.port}")
    assert "sk-secret" not in str(seen.headers)
    assert not {"authorization", "proxy-authorization", "x-api-key"} & seen.headers.keys()


async def test_custom_certificate_authority(certificate: tuple[Path, ssl.SSLContext]) -> None:
    ca_file, tls = certificate
    async with ModelServer([say("x")], tls=tls) as server:
        endpoint = Endpoint(base_url=server.base_url, model="m", ca_file=str(ca_file))
        async with OpenAIModel(endpoint) as model:
            assert (await model.reply(HI)).message.content == "x"


async def test_untrusted_certificate(
    certificate: tuple[Path, ssl.SSLContext],
) -> None:
    _, tls = certificate
    async with ModelServer([say("x")], tls=tls) as server:
        endpoint = Endpoint(base_url=server.base_url, model="m", api_key="sk-secret")
        async with OpenAIModel(endpoint) as model:
            with pytest.raises(ProviderError) as caught:
                await model.reply(HI)
    assert str(caught.value) == (
        f"The certificate of {server.base_url} is not trusted: self-signed certificate. If it is "
        "signed by an authority of your own, give that as ca_file."
    )
    assert not caught.value.retryable
    assert caught.value.__context__ is None


async def test_https_to_an_http_server() -> None:
    async with ModelServer([say("x")]) as server:
        base_url = server.base_url.replace("http://", "https://")
        async with OpenAIModel(Endpoint(base_url=base_url, model="m")) as model:
            with pytest.raises(ProviderError) as caught:
                await model.reply(HI)
    assert str(caught.value).startswith(f"TLS with {base_url} failed: ")
    assert "should the address begin with http://?" in str(caught.value)
    assert not caught.value.retryable


def test_missing_ca_file(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.pem")
    with pytest.raises(ConfigError) as caught:
        OpenAIModel(Endpoint(base_url="https://h/v1", model="m", ca_file=missing))
    assert str(caught.value) == (
        f"The ca_file {missing!r} cannot be read: No such file or directory."
    )


@pytest.mark.parametrize(
    ("base_url", "proxy", "read"),
    [
        ("http://h/v1", None, False),
        ("http://h/v1", "http://p:3128", False),
        ("http://h/v1", "https://p:3128", True),
        (" HTTPS://h/v1", None, True),
    ],
)
def test_ca_file_is_read_only_for_https(
    tmp_path: Path, base_url: str, proxy: str | None, read: bool
) -> None:
    missing = str(tmp_path / "missing.pem")
    endpoint = Endpoint(base_url=base_url, model="m", proxy=proxy, ca_file=missing)
    with pytest.raises(ConfigError, match="cannot be read") if read else nullcontext():
        OpenAIModel(endpoint)


def test_invalid_ca_file(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    path.write_text("hello")
    with pytest.raises(ConfigError, match="is not a certificate in PEM form"):
        OpenAIModel(Endpoint(base_url="https://h/v1", model="m", ca_file=str(path)))
