// SPDX-License-Identifier: Apache-2.0
// Formulas arrive from the build as \(...\) and \[...\] inside elements of class `arithmatex`.
document.addEventListener("DOMContentLoaded", () => {
  for (const element of document.querySelectorAll(".arithmatex")) {
    const source = element.textContent.trim();
    const displayMode = source.startsWith("\\[");
    katex.render(source.slice(2, -2), element, { displayMode, throwOnError: false });
  }
});
