"""Chat templates that would run for ever, fill the memory or leave the sandbox: one-line errors, and a worker that starts again."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from chats import TEMPLATES, USER
from pellucid.errors import TokenizerError
from pellucid.tokenizer import limited_process as worker_module
from pellucid.tokenizer.chat_template import Template

HOSTILE = [
    ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "worker.time"),
    ("{{ 'ab' | slice(100000000) | list }}", "worker.time"),
    ("{{ 10 ** 10000000 }}", "worker.time"),
    ("{{ ('a' * 2000000000) | length }}", "worker.memory"),
    ("{{ 'a'.center(2000000000) }}", "worker.memory"),
    ("{{ '%2000000000d' % 1 }}", "worker.memory"),
    ("{{ '{:>2000000000}'.format(1) }}", "worker.memory"),
    ("{% set ns=namespace(x='aa') %}{% for i in range(64) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}", "template.output"),
    ("{% for i in range(99999) %}{{ 'abcdefghijklmnop' }}{% endfor %}", "template.output"),
    ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "template.deep"),
    ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "template.deep"),
    ("{% if 1 %}" * 2000 + "{% endif %}" * 2000, "template.deep"),
    ("{{ ''.__class__.__mro__ }}", "template.unsafe"),
    ("{{ cycler.__init__.__globals__ }}", "template.unsafe"),
    ("{{ raise_exception.__globals__.x }}", "template.unsafe"),
    ("{{ (messages | attr('__class__')).x }}", "template.unsafe"),
    ("{% set f = '{0.__class__.x}'.format %}{{ f(1) }}", "template.unsafe"),  # CVE-2024-56326: an indirect reference to str.format
    ("{% set f = ['{0.__class__.x}'.format] %}{{ f[0](1) }}", "template.unsafe"),
    ("{{ ('{0.__class__.x}' | attr('format'))(1) }}", "template.unsafe"),  # CVE-2025-27516: the same through a filter
    ("{% set f = messages[0].content.format_map %}{{ f(messages[0]) }}", "template.unsafe"),
    ("{{ messages.append(1) }}", "template.unsafe"),
    ("{{ messages[0].update({'role': 'x'}) }}", "template.unsafe"),
    ("{% set ns = namespace(__class__=1) %}", "template.unsafe"),
    ("{% set ns = namespace() %}{% set ns.__class__ = 1 %}", "template.unsafe"),
    ("{{ dict.__call__.x }}", "template.unsafe"),
    ("{% include 'config.json' %}", "template.unsafe"),
    ("{% import 'x' as y %}", "template.unsafe"),
    ("{% extends 'x' %}", "template.unsafe"),
    ("{% from 'x' import y %}", "template.unsafe"),
    ("{{ lipsum.__globals__ }}", "template.failed"),
    ("{{ nope.x }}", "template.failed"),
    ("{{ 1 / 0 }}", "template.failed"),
    ("{{ range(10000000) }}", "template.failed"),
    ("{% for %}", "template.syntax"),
    ("{% macro f('}{{ 1 }}", "template.syntax"),  # CVE-2024-56201: no name of a file reaches the compiler
    ("{{ raise_exception('no\nsystem\x1b[0m') }}", "template.refused"),
]


@pytest.mark.parametrize(("source", "key"), HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.quick(11)
def test_hostile_templates(source: str, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "SECONDS", 0.5)
    template = Template(source, "chat_template.jinja")
    for _ in range(2 if key == "worker.time" and "range" in source else 1):  # killed, and started again
        with pytest.raises(TokenizerError) as caught:
            template.render([{"role": "user", "content": "{role.__class__.x}", "name": "x"}])
        assert caught.value.key == key and str(caught.value).startswith("chat_template.jinja")
        assert "\n" not in str(caught.value) and "\x1b" not in str(caught.value) and len(str(caught.value)) < 1000


def test_the_template_says_where_it_failed() -> None:
    with pytest.raises(TokenizerError, match=r"line 3: .*nope"):
        Template("a\nb\n{{ nope.x }}", "t").render([USER])


def test_the_worker_has_no_secrets_and_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    template = Template("x", "t")
    template.render([USER])
    process = template._worker._process
    assert process
    if not os.path.isdir(f"/proc/{process.pid}"):
        pytest.skip("no /proc here")
    assert "secret" not in Path(f"/proc/{process.pid}/environ").read_text()
    assert "torch" not in Path(f"/proc/{process.pid}/maps").read_text()
    assert "tokenizers" not in Path(f"/proc/{process.pid}/maps").read_text()


def test_the_worker_starts_late_and_ends_with_its_template() -> None:
    template = Template(TEMPLATES["chatml"], "t")
    assert template._worker._process is None
    first = template.render([USER]).text
    process = template._worker._process
    assert process
    process.kill()
    process.wait()
    assert template.render([USER]).text == first and template._worker._process is not process
    process = template._worker._process
    del template
    assert process.wait(timeout=20)


def test_the_worker_dies_with_its_parent() -> None:
    code = (
        "import os; from pellucid.tokenizer.chat_template import Template; t = Template('x', 't'); "
        "t.render([{'role': 'user', 'content': ''}]); print(t._worker._process.pid, flush=True); os._exit(0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    pid = int(done.stdout)
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0]
        except OSError:
            return
        if state == "Z":
            return
        time.sleep(0.05)
    raise AssertionError(pid)


def test_ctrl_c_leaves_no_half_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer left over after Ctrl-C is not taken for the answer to the next request."""
    template = Template("{{ messages[0].content }}", "t")
    template.render([USER])
    honest = worker_module.read

    def interrupted(pipe: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(worker_module, "read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        template.render([{"role": "user", "content": "first"}])
    monkeypatch.setattr(worker_module, "read", honest)
    assert template.render([{"role": "user", "content": "second"}]).text == "second"


def test_an_answer_too_long_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not read; else the worker would wait for the next request while this process waits for the worker's end."""
    template = Template("x", "t")
    template.render([USER])
    monkeypatch.setattr(worker_module, "PATIENCE", -0.9)
    monkeypatch.setattr(worker_module, "LONGEST", 8)
    with pytest.raises(TokenizerError) as caught:
        template.render([USER])
    assert caught.value.key == "worker.time"


def test_a_system_without_signals_that_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    template = Template("x", "t")
    template.render([USER])
    process = template._worker._process
    assert process
    monkeypatch.setattr(worker_module, "read", lambda pipe: process.kill())
    monkeypatch.setattr(worker_module, "signal", object())
    with pytest.raises(TokenizerError) as caught:
        template.render([USER])
    assert caught.value.key == "worker.died"
