// page_parts.c - what all pages have in common; see page_parts.h. No library, no network.
#include "plan/page_parts.h"

void page_string(FILE* out, const char* text) {
    fputc('"', out);
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 32 || c == '"' || c == '\\' || c == '<') fprintf(out, "\\u%04x", c);
        else fputc(c, out);
    }
    fputc('"', out);
}

// clang-format off
const char page_begin[] =
    "<!doctype html>\n"
    "<html lang='en'>\n"
    "<head>\n"
    "<meta charset='utf-8'>\n"
    "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
    "<title>ragged</title>\n"
    "<style>\n"
    ":root { --ink: #1d2430; --soft: #5d6675; --line: #d8dce3; --paper: #ffffff; --idle: #eceef2; --best: #b3261e; }\n"
    "@media (prefers-color-scheme: dark) {\n"
    "  :root { --ink: #e8eaee; --soft: #a0a8b5; --line: #3a414d; --paper: #14171c; --idle: #23272f;\n"
    "    --best: #ff8a80; }\n"
    "}\n"
    "body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper);\n"
    "  margin: 0 auto; max-width: 1180px; padding: 20px 24px 60px; }\n"
    "h1 { font-size: 22px; margin: 0 0 4px; }\n"
    "h2 { font-size: 17px; margin: 30px 0 2px; }\n"
    "p { margin: 2px 0 8px; color: var(--soft); }\n"
    "table { border-collapse: collapse; margin: 8px 0; font-variant-numeric: tabular-nums; }\n"
    "th, td { text-align: right; padding: 3px 14px 3px 0; border-bottom: 1px solid var(--line);\n"
    "  white-space: nowrap; }\n"
    "th { font-weight: 600; color: var(--soft); }\n"
    "th:first-child, td:first-child, td.words { text-align: left; }\n"
    "td.words { color: var(--soft); font-size: 13px; white-space: normal; min-width: 18em; }\n"
    "tr.chosen td { font-weight: 600; }\n"
    "tr.chosen td.words { font-weight: 400; }\n"
    "canvas { width: 100%; display: block; }\n"
    "#legend span { display: inline-block; margin-right: 14px; color: var(--soft); }\n"
    "#legend i { display: inline-block; width: 13px; height: 13px; margin-right: 5px; vertical-align: -2px;\n"
    "  border-radius: 2px; }\n"
    "#tip { position: fixed; pointer-events: none; display: none; white-space: pre-line;\n"
    "  background: var(--ink); color: var(--paper); padding: 7px 10px; border-radius: 5px; font-size: 13px;\n"
    "  line-height: 1.4; max-width: 430px; z-index: 2; }\n"
    ".wide { overflow-x: auto; }\n";

const char page_numbers[] =
    "<div id='tip'></div>\n"
    "<script id='numbers' type='application/json'>\n";

const char page_functions[] =
    "</script>\n"
    "<script>\n"
    "'use strict';\n"
    "const x = JSON.parse(document.getElementById('numbers').textContent);\n"
    "const get = id => document.getElementById(id);\n"
    "const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();\n"
    "const ms = t =>\n"
    "  t >= 100 ? t.toFixed(0) + ' ms' : t >= 1 ? t.toFixed(2) + ' ms' :\n"
    "  t > 0 ? (1000 * t).toFixed(1) + ' us' : '0 ms';\n"
    "const share = f => (100 * f).toFixed(1) + ' %';\n"
    "const grouped = n => n.toLocaleString('en');\n"
    "function row(table, cells, head) {\n"
    "  const tr = table.insertRow();\n"
    "  for (const cell of cells) {\n"
    "    const td = document.createElement(head ? 'th' : 'td');\n"
    "    td.textContent = cell;\n"
    "    tr.append(td);\n"
    "  }\n"
    "  return tr;\n"
    "}\n"
    "get('title').textContent = x.title;\n"
    "document.title = 'ragged: ' + x.title;\n"
    "// A canvas as wide as it may be and so high, in CSS pixels.\n"
    "function paper(canvas, height) {\n"
    "  const scale = window.devicePixelRatio || 1;\n"
    "  canvas.style.height = height + 'px';\n"
    "  canvas.width = canvas.clientWidth * scale;\n"
    "  canvas.height = height * scale;\n"
    "  const c = canvas.getContext('2d');\n"
    "  c.scale(scale, scale);\n"
    "  return c;\n"
    "}\n"
    "function always(draw) {\n"
    "  draw();\n"
    "  window.addEventListener('resize', draw);\n"
    "  window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);\n"
    "}\n"
    "function tell(e, words) {\n"
    "  const tip = get('tip');\n"
    "  tip.style.display = words ? 'block' : 'none';\n"
    "  tip.textContent = words;\n"
    "  tip.style.left = Math.min(e.clientX + 14, window.innerWidth - tip.offsetWidth - 8) + 'px';\n"
    "  tip.style.top = Math.min(e.clientY + 14, window.innerHeight - tip.offsetHeight - 8) + 'px';\n"
    "}\n";

const char page_end[] =
    "</script>\n"
    "</body>\n"
    "</html>\n";
// clang-format on
