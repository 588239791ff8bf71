"use strict";
// Filter and sort the tests; without scripts, the page has them all, failures first.
for (const box of document.querySelectorAll(".filters")) {
  const list = box.nextElementSibling;
  const tests = [...list.children];
  const text = box.querySelector(".text");
  const status = box.querySelector(".of-status");
  const order = box.querySelector(".order");
  const all = box.querySelector(".all");
  const nameOf = (test) => (test.dataset.name ?? test.querySelector(".name").textContent).toLowerCase();
  const names = new Map(tests.map((test) => [test, nameOf(test)]));
  const timeOf = (test) => Number(test.querySelector(".time")?.dataset.value ?? -1);
  const findingsOf = (test) => Number(test.dataset.findings ?? 0);
  const orders = {
    rank: null,
    name: (a, b) => (names.get(a) < names.get(b) ? -1 : 1),
    time: (a, b) => timeOf(b) - timeOf(a),
    findings: (a, b) => findingsOf(b) - findingsOf(a),
  };
  const filter = () => {
    const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const test of tests) {
      const fits = (!status.value || test.dataset.status === status.value) &&
        words.every((word) => names.get(test).includes(word));
      test.hidden = !fits;
      shown += fits;
    }
    box.querySelector(".shown").textContent = shown === tests.length
      ? `${shown.toLocaleString("en")} shown`
      : `${shown.toLocaleString("en")} of ${tests.length.toLocaleString("en")} shown`;
  };
  const sort = () => {
    const by = orders[order.value];
    list.append(...(by ? [...tests].sort(by) : tests));
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
    const shown = tests.filter((test) => !test.hidden);
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
