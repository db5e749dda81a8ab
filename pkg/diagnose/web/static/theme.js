// The theme is set before anything is painted, so this is a classic script in the head.
"use strict";
(() => {
  const key = "fairlead-theme";
  const stored = () => {
    try {
      return localStorage.getItem(key);
    } catch {
      return null; // storage may be disabled
    }
  };
  const apply = (theme) => {
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
  };
  apply(stored());
  document.addEventListener("DOMContentLoaded", () => {
    const select = document.getElementById("theme");
    select.value = document.documentElement.dataset.theme || "auto";
    select.addEventListener("change", () => {
      apply(select.value);
      try {
        localStorage.setItem(key, select.value);
      } catch {
        // then the theme applies only to this page
      }
    });
    addEventListener("storage", (event) => {
      if (event.key === key) {
        apply(event.newValue);
        select.value = document.documentElement.dataset.theme || "auto";
      }
    });
  });
})();
