// Before the first paint: the colours that were chosen in this browser; without a choice, those of the system.
"use strict";
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const chosen = () => {
    try {
      return localStorage.getItem("correlator-theme");
    } catch {
      return null; // storage is switched off
    }
  };
  const apply = () => {
    const wanted = chosen();
    root.dataset.theme = wanted === "light" || wanted === "dark" ? wanted : dark.matches ? "dark" : "light";
    dispatchEvent(new Event("theme"));
  };
  window.chooseTheme = (wanted) => {
    try {
      localStorage.setItem("correlator-theme", wanted);
    } catch {
      // the choice cannot be kept
    }
    root.dataset.theme = wanted;
    dispatchEvent(new Event("theme"));
  };
  dark.addEventListener("change", apply);
  addEventListener("storage", ({ key }) => key === "correlator-theme" && apply()); // another page has chosen
  apply();
})();
