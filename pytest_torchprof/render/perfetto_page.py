"""The page that hands a trace to the Perfetto UI.

Source of the protocol: https://perfetto.dev/docs/visualization/deep-linking-to-perfetto-ui. The UI
gets the trace by a message to its window: its own security policy lets it fetch from one port only.
"""

from __future__ import annotations

import html
import json
from string import Template
from typing import Final

#: The only origin that the trace is sent to.
PERFETTO: Final = "https://ui.perfetto.dev"

#: What the page itself may do: run this script, and ask our server.
POLICY: Final = (
    "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'"
)

_PAGE: Final = Template("""\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>$title</title>
<style nonce="$nonce">
  :root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
  body { max-width: 36rem; margin: 15vh auto; padding: 0 1rem; }
  h1 { font-size: 1.25rem; overflow-wrap: anywhere; }
  button { font: inherit; padding: .5rem 1rem; }
</style>
<h1>$title</h1>
<p><button id="open" type="button">Open in the Perfetto UI</button></p>
<p id="state" role="status">The trace stays on this machine: it goes from here to the tab that
opens.</p>
<noscript><p>This page needs JavaScript. Open the file at $origin instead.</p></noscript>
<script nonce="$nonce">
  const origin = $origin_json, name = $name_json;
  const state = text => { document.getElementById("state").textContent = text; };
  let sent = false;
  async function open_() {
    const ui = window.open(origin);
    if (!ui) { state("The browser blocked the new tab: use the button."); return; }
    state("Waiting for the Perfetto UI …");
    let buffer;
    try {
      const answer = await fetch("trace");
      if (!answer.ok) throw new Error(answer.status);
      buffer = await answer.arrayBuffer();
    } catch (error) {
      state("torchprof open has ended: run it again.");
      return;
    }
    const asking = setInterval(() => ui.postMessage("PING", origin), 50);
    window.addEventListener("message", event => {
      if (event.origin !== origin || event.data !== "PONG" || sent) return;
      sent = true;
      clearInterval(asking);
      ui.postMessage({perfetto: {buffer, title: name, fileName: name}}, origin);
      state("Opened. This tab can be closed.");
      fetch("done", {method: "POST"});
    });
  }
  document.getElementById("open").addEventListener("click", open_);
  open_();
</script>
""")


def perfetto_page(name: str, nonce: str) -> str:
    """The page for a trace of this name; scripts and styles run by the nonce only."""

    def in_script(text: str) -> str:
        return json.dumps(text).replace("<", "\\u003c")

    return _PAGE.substitute(
        title=html.escape(name),
        nonce=nonce,
        origin=PERFETTO,
        origin_json=in_script(PERFETTO),
        name_json=in_script(name),
    )
