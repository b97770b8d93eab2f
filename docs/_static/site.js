// The atlas in a frame: it has the theme of this page, the room it needs, and shows what the address says.
addEventListener("DOMContentLoaded", () => {
  const frames = [...document.querySelectorAll("iframe.atlas")];
  const system = matchMedia("(prefers-color-scheme: dark)");
  const theme = () => {
    const chosen = document.body.dataset.theme;
    return chosen === "light" || chosen === "dark" ? chosen : system.matches ? "dark" : "light";
  };
  const tell = (frame) => frame.contentWindow?.postMessage({ theme: theme() }, "*");
  addEventListener("message", (event) => {
    const frame = frames.find((one) => one.contentWindow === event.source);
    if (!frame || typeof event.data?.atlas !== "number") return;
    if (event.data.atlas) frame.style.height = event.data.atlas + 4 + "px";
    tell(frame);
  });
  new MutationObserver(() => frames.forEach(tell)).observe(document.body, { attributeFilter: ["data-theme"] });
  system.addEventListener("change", () => frames.forEach(tell));
  const whole = frames.find((frame) => frame.classList.contains("whole"));
  const follow = () => { if (whole && location.hash) whole.src = whole.src.split("#")[0] + location.hash; };
  addEventListener("hashchange", follow);
  follow();
});
// Versions of the site that lie beside this one; docs/publish.py lists them. The same page there, if it has one.
addEventListener("DOMContentLoaded", async () => {
  const label = document.querySelector("label.versions");
  if (!label || !location.protocol.startsWith("http")) return;
  const here = new URL(document.documentElement.dataset.content_root, location.href);
  const answer = await fetch(new URL("../versions.json", here)).catch(() => null);
  if (!answer?.ok) return;
  const select = label.querySelector("select");
  for (const { name, url } of await answer.json()) {
    const address = new URL(`../${url}`, here).href;
    select.append(new Option(name, address, false, address === here.href));
  }
  select.addEventListener("change", async () => {
    const page = select.value + location.href.slice(here.href.length);
    const there = await fetch(page, { method: "HEAD" }).catch(() => null);
    location.href = there?.ok ? page : select.value;
  });
  label.hidden = false;
});
