// Light or dark: as the system says, unless the user has chosen here. Runs before the first paint.
(() => {
  const KEY = "csd-emu-theme";
  const CHOICES = ["auto", "light", "dark"];
  const root = document.documentElement;
  const load = () => {
    try {
      return CHOICES.includes(localStorage.getItem(KEY)) ? localStorage.getItem(KEY) : "auto";
    } catch {
      return "auto"; // storage is forbidden: the choice lasts as long as the page
    }
  };
  const save = (choice) => {
    try {
      localStorage.setItem(KEY, choice);
    } catch {
      // see above
    }
  };
  const show = (choice) => {
    if (choice === "auto") delete root.dataset.theme;
    else root.dataset.theme = choice;
    const button = document.getElementById("theme");
    if (button) button.textContent = `Theme: ${choice}`;
    dispatchEvent(new CustomEvent("themechange"));
  };
  let choice = load();
  show(choice);
  addEventListener("DOMContentLoaded", () => {
    show(choice);
    document.getElementById("theme").addEventListener("click", () => {
      choice = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length];
      save(choice);
      show(choice);
    });
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => show(choice));
})();
