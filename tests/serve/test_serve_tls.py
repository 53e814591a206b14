"""TLS by --cert and --key, and a key from a file: the server answers its own address in https alone, and wrong files have one line."""

import http.client
import json
import os
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from openai_served import openai_served
from pellucid.api.model import load
from pellucid.commands import main

# A certificate of 127.0.0.1 made for this test, and its key, which guards nothing.
CERT = """\
-----BEGIN CERTIFICATE-----
MIIBmzCCAUGgAwIBAgIUc9Qf+DvdeITrx91Efm+/jjjx9DowCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyNTAzNTMwMVoYDzIxMjYxMTAx
MDM1MzAxWjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAASsJIUuttcxeztwjqYp0g8DLcy61cqQ9wnkk3X+ke49WpTv7x7v/ibb
q9IleDJxDWfx0ueUDlLl9fA6O3nliEexo28wbTAdBgNVHQ4EFgQUg5tfaqnby7g9
VOvUV8XsPvVv698wHwYDVR0jBBgwFoAUg5tfaqnby7g9VOvUV8XsPvVv698wDwYD
VR0TAQH/BAUwAwEB/zAaBgNVHREEEzARhwR/AAABgglsb2NhbGhvc3QwCgYIKoZI
zj0EAwIDSAAwRQIhAOtq1cieW3z8jsPzyRdUisVAlbexlxm+2bA2iF60xUb8AiBs
kjr1ra+kbuKeBgoHvpCdwEf606cXlCBKfp7cOIus3Q==
-----END CERTIFICATE-----
"""
KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgpGXygDcMVFSIWHNV
Y7tAg5yx5hLuIkpnDKx2KArSlxqhRANCAASsJIUuttcxeztwjqYp0g8DLcy61cqQ
9wnkk3X+ke49WpTv7x7v/ibbq9IleDJxDWfx0ueUDlLl9fA6O3nliEex
-----END PRIVATE KEY-----
"""
MODEL = "pellucid/capitals-llama"


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "cert.pem").write_text(CERT)
    (tmp_path / "key.pem").write_text(KEY)
    return str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")


def test_a_process_speaks_tls(pair: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("sk-file\n")
    words = ["serve", MODEL, "--port", "0", "--json", "-q", "--cert", pair[0], "--key", pair[1], "--api-key-file", str(tmp_path / "secret")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-m", "pellucid", *words], env=env, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())["address"]
        assert address.startswith("https://127.0.0.1:")
        port, trusted = int(address.rpartition(":")[2]), ssl.create_default_context(cadata=CERT)
        status = {}
        for key, origin in (("sk-file", address), ("sk-file", f"http://127.0.0.1:{port}"), ("wrong", address)):
            connection = http.client.HTTPSConnection("127.0.0.1", port, context=trusted, timeout=30)
            connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}", "Origin": origin})
            status[key, origin.partition(":")[0]] = connection.getresponse().status
            connection.close()
        assert status == {("sk-file", "https"): 200, ("sk-file", "http"): 403, ("wrong", "https"): 401}
    finally:
        process.kill()
        process.communicate()


def test_wrong_files(pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").write_text("")
    (tmp_path / "two").write_text("a b")
    both = ["--cert", pair[0], "--key"]
    for words, named in (
        (["--cert", pair[0]], "--key"),
        (["--key", pair[1]], "--cert"),
        ([*both, pair[0]], "cert.pem"),
        ([*both, str(tmp_path / "none")], "none"),
        (["--api-key-file", str(tmp_path / "none")], "none"),
        (["--api-key-file", str(tmp_path / "empty")], "one key"),
        (["--api-key-file", str(tmp_path / "two")], "one key"),
        (["--api-key-file", str(tmp_path / "two"), "--api-key", "a"], "either"),
    ):
        assert main(["serve", MODEL, "--port", "0", *words, "--lang", "en"]) == 2
        err = capsys.readouterr().err.strip()
        assert named in err and "\n" not in err


def test_the_page_is_under_the_guard() -> None:
    """Every route but the page's files and /health wants the key, traces too; another site's page reads nothing."""
    with openai_served(load(MODEL), key="sk-page") as server:
        anonymous = {"authorization": ""}
        free = [path for path in ("/", "/page.js", "/page.css", "/health") if server.client.get(path, headers=anonymous).status_code == 200]
        assert free == ["/", "/page.js", "/page.css", "/health"]
        closed = ("/api/models", "/api/traces", "/api/traces/" + "0" * 32, "/traces/" + "0" * 32 + "/api/models", "/v1/models", "/metrics")
        refused = [server.client.get(path, headers=anonymous) for path in closed]
        assert [(r.status_code, r.headers["www-authenticate"]) for r in refused] == [(401, "Bearer")] * len(closed)
        assert server.client.get("/traces/" + "0" * 32 + "/", headers=anonymous).status_code == 200
        for path in ("/", "/api/models", "/traces/" + "0" * 32 + "/"):
            assert server.client.get(path, headers={"host": "evil.example"}).status_code == 403
            assert server.client.get(path, headers={"origin": "https://evil.example"}).status_code == 403
