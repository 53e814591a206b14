"""The page at scale in a real Chromium: frames, long tasks and DOM nodes while a large run is opened, panned, zoomed and hovered.

    python benchmarks/page.py [--tokens 2048] [--side 4096] [--seconds 3] [--quick] [--folder DIR] [--out FILE]

Four servers with random weights: GPT-2's shape with a prompt of 2,048 tokens, one layer with square matrices of 4,096, a vocabulary of
152,000, over which the sliders of sampling move, and 61 blocks, whose Map has 504 and 4,096 tokens. And the specimen: from the moment
that the server answers to what is first painted, to its answer, and to the Map's first numbers. Of each act are told: frames as
requestAnimationFrame saw them, tasks of over 50 ms (PerformanceObserver), and by the browser's own trace how long its main thread was in
scripts, layout and paint, and how long it waited for the pictures, which a machine without a GPU draws on its processor.
Writes benchmarks/results/page.json.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "support"))  # a browser and a server, as the tests have them

from playwright.sync_api import Browser, Page  # noqa: E402

from browser import Tab, chromium, open_tab, serve_from_command  # noqa: E402

GPT2 = {"model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 4096}
SQUARE = {
    "model_type": "llama", "vocab_size": 256, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 32,
    "num_key_value_heads": 1, "max_position_embeddings": 64,
}  # fmt: skip
WIDE = {
    "model_type": "llama", "hidden_size": 32, "vocab_size": 151936, "intermediate_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
DEEP = {
    "model_type": "llama", "hidden_size": 64, "vocab_size": 64, "intermediate_size": 64, "num_hidden_layers": 61,
    "num_attention_heads": 4, "max_position_embeddings": 8192,
}  # fmt: skip
# Frames and tasks since the last reading. A frame's length is the time between two calls.
WATCH = """() => {
  const own = window.__watched = { frames: [], tasks: [], last: 0 };
  new PerformanceObserver(l => l.getEntries().forEach(e => own.tasks.push(e.duration))).observe({ type: "longtask" });
  const frame = now => { if (own.last) own.frames.push(now - own.last); own.last = now; requestAnimationFrame(frame); };
  requestAnimationFrame(frame);
}"""
READ = "() => { const w = window.__watched, told = [w.frames, w.tasks]; w.frames = []; w.tasks = []; return told; }"
SLIDE = """([slider, low, high, ms]) => new Promise(done => {
  const own = document.querySelector(slider), began = performance.now();
  const frame = now => {
    const share = (now - began) / ms;
    if (share >= 1) return done();
    own.value = String(low + (high - low) * (0.5 - 0.5 * Math.cos(12 * share)));
    own.dispatchEvent(new Event("input", { bubbles: true }));
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
})"""
METRICS = ("TaskDuration", "ScriptDuration", "LayoutDuration", "RecalcStyleDuration")


def random_model(folder: Path, hf: dict[str, Any]) -> None:
    """A random model in bfloat16. In a process of its own, so that this one stays small."""
    import torch

    from pellucid.api.model import make

    made = make({**hf, "bos_token_id": 0, "eos_token_id": 0}, dtype=torch.bfloat16)
    draw = torch.Generator().manual_seed(5)
    for name, p in made.module.named_parameters():
        p.data = (torch.randn(p.shape, generator=draw) * 0.05 + (p.ndim == 1 and "norm" in name)).bfloat16()
    made.save(folder)


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


class Measure:
    """One page, watched: acts by name, and what each took."""

    def __init__(self, tab: Tab, seconds: float) -> None:
        self.page: Page = tab.page
        self.seconds, self.acts = seconds, dict[str, Any]()
        self.client = self.page.context.new_cdp_session(self.page)
        self.client.send("Performance.enable")
        self.page.evaluate(WATCH)

    def metrics(self) -> dict[str, float]:
        found = {m["name"]: m["value"] for m in self.client.send("Performance.getMetrics")["metrics"]}
        return {name: 1e3 * found[name] for name in METRICS}

    @contextmanager
    def act(self, name: str) -> Iterator[None]:
        """Frames, tasks, time of the main thread and DOM nodes of what happens within."""
        self.page.evaluate(READ)
        before, began = self.metrics(), time.perf_counter()
        yield
        self.page.evaluate("() => new Promise(f => requestAnimationFrame(() => requestAnimationFrame(f)))")
        spent = {key: value - before[key] for key, value in self.metrics().items()}
        frames, tasks = self.page.evaluate(READ)
        self.acts[name] = {
            "seconds": time.perf_counter() - began,
            "frames": len(frames),
            "frame_ms": {"median": statistics.median(frames or [0]), "p99": percentile(frames, 0.99), "longest": max(frames, default=0)},
            "frames_over_100_ms": sum(f > 100 for f in frames),
            "longest_task_ms": max(tasks, default=0),
            "tasks_over_50_ms": len(tasks),
            "main_thread_ms": {
                "script": spent["ScriptDuration"],
                "layout": spent["LayoutDuration"] + spent["RecalcStyleDuration"],
                "all": spent["TaskDuration"],
            },
            "dom_nodes": self.page.evaluate("document.querySelectorAll('*').length"),
        }
        print(name, {k: v if isinstance(v, int | dict) else round(v, 2) for k, v in self.acts[name].items()}, flush=True)

    def box(self, selector: str) -> tuple[float, float, float, float]:
        """A place's left, top, width and height in the window."""
        found = self.page.locator(selector).first
        found.scroll_into_view_if_needed()
        box = found.bounding_box()
        assert box is not None
        return box["x"], box["y"], box["width"], box["height"]

    def repeat(self, step: Callable[[int], object]) -> None:
        """Call step(0), step(1), ... while there is time."""
        end, i = time.perf_counter() + self.seconds, 0
        while time.perf_counter() < end:
            step(i)
            i += 1

    def matrix(self, name: str, selector: str = "aside .frame") -> None:
        """Hover, zoom, pan and walk over an open matrix, each for some seconds."""
        page = self.page
        page.wait_for_selector(f"{selector}[data-level]")
        page.wait_for_timeout(500)
        x, y, w, h = self.box(selector)
        inside = [(x + w * (0.15 + 0.8 * (i % 37) / 37), y + h * (0.2 + 0.75 * (i % 23) / 23)) for i in range(37 * 23)]

        with self.act(f"{name}: hover"):
            self.repeat(lambda i: page.mouse.move(*inside[i % len(inside)]))
        with self.act(f"{name}: zoom"):
            page.mouse.move(x + w / 2, y + h / 2)
            page.keyboard.down("Control")
            self.repeat(lambda i: page.mouse.wheel(0, -100 if i % 40 < 20 else 100))
            page.keyboard.up("Control")
        for _ in range(5):
            page.click("aside .tools button >> nth=0" if "aside" in selector else ".tools button >> nth=0")
        page.wait_for_timeout(500)
        with self.act(f"{name}: pan"):
            page.mouse.move(x + w / 2, y + h / 2)
            page.mouse.down()
            self.repeat(lambda i: page.mouse.move(x + w * (0.5 + 0.4 * ((i % 50) / 50 - 0.5)), y + h * (0.5 + 0.4 * ((i % 31) / 31 - 0.5))))
            page.mouse.up()
        with self.act(f"{name}: arrow keys"):
            page.focus(selector)
            self.repeat(lambda i: page.keyboard.press("ArrowRight" if i % 2 else "ArrowDown"))


def large_run(browser: Browser, address: str, tokens: int, seconds: float) -> dict[str, Any]:
    """A long prompt: the river, the score table of a head, all heads, and the other views."""
    ids = "#" + " ".join(str((17 * i) % 50000) for i in range(tokens))
    with open_tab(browser, address) as tab:
        page = tab.page
        page.set_default_timeout(300_000)
        began = time.perf_counter()
        tab.go(prompt=ids)
        told: dict[str, Any] = {"tokens": tokens, "seconds_to_run_and_open": time.perf_counter() - began}
        measure = Measure(tab, seconds)
        with measure.act("life: scroll"):
            for i in range(40):
                page.mouse.wheel(0, 400 if i < 20 else -400)
                page.wait_for_timeout(40)
        where = f"prompt={quote(ids)}"
        for path in ("layers.0.attn.pattern", "layers.0.ffn.neurons", "logits"):
            with measure.act(f"{path}: open"):
                page.evaluate("h => { location.hash = h }", f"tensor={path}&{where}")
                page.wait_for_selector(f'aside[aria-label="{path}"] .frame[data-level]')
                page.wait_for_timeout(1000)
            measure.matrix(path)
        for view in ("attention", "next", "cache", "budget"):
            with measure.act(f"{view}: open"):
                page.evaluate("h => { location.hash = h }", f"view={view}&{where}")
                page.wait_for_timeout(6000 if view == "attention" else 3000)
        tab.faults.clear()
        return told | {"acts": measure.acts}


def large_matrix(browser: Browser, address: str, side: int, seconds: float) -> dict[str, Any]:
    """A weight of side x side."""
    with open_tab(browser, address) as tab:
        tab.page.set_default_timeout(120_000)
        tab.go(prompt="#1 2 3")
        measure = Measure(tab, seconds)
        with measure.act("weight: open"):
            tab.page.evaluate("h => { location.hash = h }", "tensor=layers.0.attn.q.weight&prompt=%231+2+3")
            tab.page.wait_for_selector("aside .frame[data-level]")
            tab.page.wait_for_timeout(2000)
        level = tab.page.get_attribute("aside .frame", "data-level")
        measure.matrix("weight")
        return {"side": side, "level": int(level or -1), "acts": measure.acts}


def wide_vocabulary(browser: Browser, address: str, seconds: float) -> dict[str, Any]:
    """Sliders of sampling over as many candidates as the vocabulary has; each moves at every frame, and all that is seen follows."""
    with open_tab(browser, address) as tab:
        tab.page.set_default_timeout(120_000)
        tab.go(prompt="#1 2 3", view="next")
        tab.page.wait_for_selector("[data-pick]")
        tab.page.wait_for_timeout(2000)
        measure = Measure(tab, seconds)
        for name, low, high in (("temperature", 0.2, 2.0), ("top_k", 1, 5000), ("top_p", 0.05, 1.0), ("min_p", 0.0, 0.5)):
            with measure.act(f"slider: {name}"):
                tab.page.evaluate(SLIDE, [f"[data-setting={name}]", low, high, 1e3 * seconds])
        return {"acts": measure.acts}


def deep_map(browser: Browser, address: str, tokens: int, seconds: float) -> dict[str, Any]:
    """The Map of a deep model and a long prompt: drawn, walked over with the pointer, scrolled, drawn again in the other colours."""
    with open_tab(browser, address) as tab:
        page = tab.page
        page.set_default_timeout(300_000)
        tab.go(view="map", prompt="#" + " ".join(str(7 * i % 64) for i in range(tokens)))
        page.wait_for_selector("[data-map] [data-norm]")
        page.wait_for_timeout(3000)  # its first run through the blocks is over
        measure = Measure(tab, seconds)
        x, y, w, h = measure.box("[data-map]")
        with measure.act("map: hover"):
            measure.repeat(lambda i: page.mouse.move(x + w * (0.2 + 0.6 * (i % 37) / 37), min(y + h * (0.1 + 0.8 * (i % 23) / 23), 860)))
        with measure.act("map: scroll"):
            for i in range(40):
                page.mouse.wheel(0, 200 if i < 20 else -200)
                page.wait_for_timeout(40)
        with measure.act("map: drawn again"):
            page.locator("header .settings button").last.click()
            page.wait_for_timeout(1000)
        return {"tokens": tokens, "acts": measure.acts}


def first_paint(browser: Browser, rounds: int) -> dict[str, Any]:
    """The specimen, by a server that answers: to the first paint, the answer, the Map's bands; each tab with an empty cache."""
    found: dict[str, list[float]] = {"first_paint": [], "answer": [], "first_picture": []}
    with serve_from_command() as address:
        for i in range(rounds + 1):
            with open_tab(browser, address) as tab:
                page, base = tab.page, address.split("#")
                page.add_init_script("""addEventListener('DOMContentLoaded', () => new MutationObserver((_, own) => {
                    const w = window.__first ??= {};
                    if (!w.answer && document.querySelector('[data-answer]')) w.answer = performance.now();
                    if (!w.picture && document.querySelector('[data-map] [data-norm]')) w.picture = performance.now();
                    if (w.answer && w.picture) own.disconnect();
                }).observe(document, { subtree: true, childList: true, attributes: true }))""")
                page.goto(f"{base[0]}#{base[1]}")
                page.wait_for_function("() => window.__first?.picture && window.__first.answer")
                painted = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0")
                first = page.evaluate("window.__first")
                if i:  # the first tab of a server also loads torch and the model
                    for name, ms in (("first_paint", painted), ("answer", first["answer"]), ("first_picture", first["picture"])):
                        found[name].append(ms / 1e3)
                else:
                    cold = {"first_paint": painted / 1e3, "answer": first["answer"] / 1e3, "first_picture": first["picture"] / 1e3}
    return {"cold_seconds": cold, "seconds": {name: statistics.median(all_) for name, all_ in found.items()}, "rounds": rounds}


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("--tokens", type=int, default=2048)
    ask.add_argument("--side", type=int, default=4096)
    ask.add_argument("--seconds", type=float, default=3.0)
    ask.add_argument("--rounds", type=int, default=5)
    ask.add_argument("--quick", action="store_true", help="to see that it runs: little of everything")
    ask.add_argument("--only", choices=["paint", "run", "matrix", "sliders", "map"])
    ask.add_argument("--folder", type=Path, help="where the weights are written, 350 MB; kept where it is told")
    ask.add_argument("--out", type=Path, default=HERE / "results" / "page.json")
    ask.add_argument("--make", help=argparse.SUPPRESS)
    a = ask.parse_args()
    if a.make:
        random_model(a.folder, json.loads(a.make))
        return
    if a.quick:
        a.tokens, a.seconds, a.rounds = min(a.tokens, 256), 0.5, 1
    from decode import machine

    report: dict[str, Any] = {"schema": 1, "benchmark": "page", "machine": machine(1), "drawn_by": "software (SwiftShader)"}
    with tempfile.TemporaryDirectory() as place:
        root = a.folder or Path(place)
        shapes = {"run": GPT2, "matrix": SQUARE | {"hidden_size": a.side}, "sliders": WIDE, "map": DEEP}
        for name, hf in shapes.items():
            if a.only in (None, name) and not (root / name).exists():
                subprocess.run([sys.executable, __file__, "--make", json.dumps(hf), "--folder", str(root / name)], check=True)
        with chromium(["chromium"]) as browser:  # frames as a reader's browser draws them
            report["browser"] = browser.version
            if a.only in (None, "paint"):
                report["specimen"] = first_paint(browser, a.rounds)
                print(report["specimen"], flush=True)
            if a.only in (None, "run"):
                with serve_from_command(str(root / "run")) as address:
                    report["run"] = large_run(browser, address, a.tokens, a.seconds)
            if a.only in (None, "matrix"):
                with serve_from_command(str(root / "matrix")) as address:
                    report["matrix"] = large_matrix(browser, address, a.side, a.seconds)
            if a.only in (None, "sliders"):
                with serve_from_command(str(root / "sliders")) as address:
                    report["sliders"] = wide_vocabulary(browser, address, a.seconds)
            if a.only in (None, "map"):
                with serve_from_command(str(root / "map")) as address:
                    for tokens in (64, 128) if a.quick else (504, 4096):
                        report[f"map of {tokens} tokens"] = deep_map(browser, address, tokens, a.seconds)
    parts = ("run", "matrix", "sliders", *(name for name in report if name.startswith("map of")))
    acts = [act for part in parts for act in report.get(part, {}).get("acts", {}).values()]
    report["most"] = {
        "frame_ms": max((act["frame_ms"]["longest"] for act in acts), default=0),
        "task_ms": max((act["longest_task_ms"] for act in acts), default=0),
        "dom_nodes": max((act["dom_nodes"] for act in acts), default=0),
    }
    a.out.parent.mkdir(exist_ok=True)
    a.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(report["most"], a.out)


if __name__ == "__main__":
    main()
