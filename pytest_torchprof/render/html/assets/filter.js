"use strict";
// Filter and sort the tests; without scripts, the page has them all, failures first.
for (const box of document.querySelectorAll(".filters")) {
  const list = box.nextElementSibling;
  const [text, status, order, all, said] = [".text", ".of-status", ".order", ".all", ".shown"]
    .map((name) => box.querySelector(name));
  // By the values of `order`: the least comes first.
  const tests = [...list.children].map((test, rank) => ({
    test,
    rank,
    name: (test.dataset.name ?? test.querySelector(".name").textContent).toLowerCase(),
    time: -Number(test.querySelector(".time")?.dataset.value ?? -1),
    findings: -Number(test.dataset.findings ?? 0),
  }));
  const filter = () => {
    const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const { test, name } of tests) {
      test.hidden = (status.value && test.dataset.status !== status.value) ||
        !words.every((word) => name.includes(word));
    }
    const shown = tests.filter(({ test }) => !test.hidden).length.toLocaleString("en");
    const every = tests.length.toLocaleString("en");
    said.textContent = shown === every ? `${shown} shown` : `${shown} of ${every} shown`;
  };
  const sort = () => {
    const key = order.value;
    const by = (a, b) => (a[key] < b[key] ? -1 : a[key] > b[key] ? 1 : a.rank - b.rank);
    list.append(...[...tests].sort(by).map(({ test }) => test));
  };
  text.addEventListener("input", filter);
  status.addEventListener("change", filter);
  order.addEventListener("change", sort);
  text.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      text.value = "";
      filter();
    }
  });
  all.addEventListener("click", () => {
    const shown = [...list.children].filter((test) => !test.hidden);
    const open = shown.some((test) => !test.open);
    for (const test of shown) test.open = open;
    all.textContent = open ? "Collapse all" : "Expand all";
  });
  box.hidden = false;
  filter();
}
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, select, textarea");
  const field = document.querySelector(".filters .text");
  if (event.key === "/" && !typing && field && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    field.focus();
  }
});
// A link to a test shows it, also if it was filtered out.
const reveal = () => {
  const test = document.getElementById(location.hash.slice(1));
  if (test?.matches("details")) {
    test.hidden = false;
    test.open = true;
    test.scrollIntoView();
  }
};
addEventListener("hashchange", reveal);
reveal();
