// SPDX-License-Identifier: Apache-2.0
// Shows what stands in the page already: the chosen values of sliders and lists, and the theme.
"use strict";
(function () {
  const root = document.documentElement;
  root.classList.add("scripted");

  const theme = document.getElementById("theme");
  const prefers = window.matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => root.dataset.theme === "dark" || (root.dataset.theme === "auto" && prefers.matches);
  const label = () => {
    theme.textContent = isDark() ? "Light" : "Dark";
    theme.setAttribute("aria-label", isDark() ? "Use light colours" : "Use dark colours");
    theme.setAttribute("aria-pressed", String(root.dataset.theme !== "auto"));
  };
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    label();
  });
  prefers.addEventListener("change", label);
  label();

  for (const whatIf of document.querySelectorAll(".what-if")) {
    const choices = JSON.parse(whatIf.querySelector("script").textContent);
    const slider = whatIf.querySelector("input");
    const markers = whatIf.querySelectorAll(".marker");
    const show = () => {
      const chosen = choices[Number(slider.value)];
      for (const place of whatIf.querySelectorAll("[data-show]")) {
        place.textContent = chosen[place.dataset.show];
      }
      for (const place of whatIf.querySelectorAll("[data-std]")) {
        place.textContent = chosen.stds[Number(place.dataset.std)];
      }
      markers.forEach((marker, index) => {
        const [x, y] = chosen.marks[index];
        marker.querySelector("line").setAttribute("transform", "translate(" + x + " 0)");
        const dot = marker.querySelector("circle");
        dot.setAttribute("visibility", y === null ? "hidden" : "visible");
        dot.setAttribute("transform", "translate(" + x + " " + (y === null ? 0 : y) + ")");
      });
      slider.setAttribute("aria-valuetext", chosen.bound);
    };
    slider.addEventListener("input", show);
    show();
  }

  for (const two of document.querySelectorAll(".two")) {
    const { names, ends, axes } = JSON.parse(two.querySelector("script").textContent);
    const [across, up] = two.querySelectorAll("select");
    const write = (selector, text) => { two.querySelector(selector).textContent = text; };
    const show = () => {
      for (const [axis, chosen] of [["x", across.value], ["y", up.value]]) {
        write("[data-name=" + axis + "]", names[chosen]);
        write('[data-end="' + axis + '\u2212"]', "\u2212" + ends[chosen]);
        write('[data-end="' + axis + '+"]', "+" + ends[chosen]);
      }
      const [along, against] = axes[across.value][up.value];
      two.querySelector("ellipse").setAttribute("rx", along);
      two.querySelector("ellipse").setAttribute("ry", against);
    };
    across.addEventListener("change", show);
    up.addEventListener("change", show);
    show();
  }

  const closed = [];
  window.addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details:not([open]):not(.long)")) {
      closed.push(details);
      details.open = true;
    }
  });
  window.addEventListener("afterprint", () => {
    for (const details of closed.splice(0)) details.open = false;
  });
})();
