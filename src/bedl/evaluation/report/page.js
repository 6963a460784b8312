"use strict";
(() => {
  const root = document.documentElement, tip = document.getElementById("tip"), spoken = document.getElementById("spoken");
  const button = document.getElementById("theme");
  const themes = ["auto", "light", "dark"];
  button.hidden = false;
  button.addEventListener("click", () => {
    const next = themes[(themes.indexOf(root.dataset.theme || "auto") + 1) % 3];
    if (next === "auto") delete root.dataset.theme; else root.dataset.theme = next;
    button.textContent = "Theme: " + next;
  });

  let now = null;
  const hide = () => { if (now) now.classList.remove("now"); now = null; tip.hidden = true; };
  const place = () => {
    if (!now) return;
    const at = now.getBoundingClientRect(), box = tip.getBoundingClientRect();
    const left = at.left + at.width / 2 - box.width / 2, top = at.top - box.height - 8;
    tip.style.left = Math.max(8, Math.min(left, root.clientWidth - box.width - 8)) + "px";
    tip.style.top = (top < 8 ? at.bottom + 8 : top) + "px";
  };
  const show = (mark, aloud) => {
    if (mark === now) return;
    hide();
    now = mark;
    mark.classList.add("now");
    tip.textContent = mark.dataset.tip; // text, never markup
    if (aloud) spoken.textContent = mark.dataset.tip;
    tip.hidden = false;
    place();
  };
  for (const plot of document.querySelectorAll("svg[tabindex]")) {
    const marks = [...plot.querySelectorAll("[data-tip]")];
    if (!marks.length) continue;
    // Points are small, on a phone above all: the nearest one within reach is meant.
    const nearest = (event) => {
      if (event.target.dataset.tip) return event.target;
      let best = null, least = 18 * 18;
      for (const mark of marks) {
        if (mark.tagName === "rect") continue;
        const at = mark.getBoundingClientRect();
        const d = (at.left + at.width / 2 - event.clientX) ** 2 + (at.top + at.height / 2 - event.clientY) ** 2;
        if (d < least) { least = d; best = mark; }
      }
      return best;
    };
    const point = (event) => { const mark = nearest(event); if (mark) show(mark, false); else hide(); };
    plot.addEventListener("pointermove", point);
    plot.addEventListener("pointerdown", point);
    plot.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") hide(); });
    plot.addEventListener("blur", hide);
    plot.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[event.key];
      const at = marks.indexOf(now), last = marks.length - 1;
      if (event.key === "Escape") return hide();
      if (event.key === "Home") show(marks[0], true);
      else if (event.key === "End") show(marks[last], true);
      else if (step) show(marks[at < 0 ? 0 : Math.max(0, Math.min(last, at + step))], true);
      else return;
      event.preventDefault();
    });
  }
  for (const input of document.querySelectorAll("input[data-steps]")) {
    const steps = JSON.parse(input.dataset.steps), part = input.closest("section"), marks = [...part.querySelectorAll(".moved")];
    const move = () => {
      const [said, ...at] = steps[input.value];
      marks.forEach((mark, i) => { mark.setAttribute("cx", at[i]); mark.setAttribute("cy", at[marks.length + i]); });
      part.querySelector("output").textContent = said;
    };
    input.hidden = false;
    input.addEventListener("input", move);
  }
  // The tip goes with its point: who walks through the points by keyboard must not start anew after scrolling.
  addEventListener("scroll", place, { passive: true });
  addEventListener("resize", place, { passive: true });
  const opened = [];
  addEventListener("beforeprint", () => {
    for (const part of document.querySelectorAll("details:not([open])")) { part.open = true; opened.push(part); }
  });
  addEventListener("afterprint", () => { for (const part of opened.splice(0)) part.open = false; });
})();
