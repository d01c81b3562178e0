// Names for controls that the theme and the gallery leave without one.
document.addEventListener("DOMContentLoaded", () => {
  for (const summary of document.querySelectorAll("li > details > summary:not([aria-label])")) {
    const link = summary.closest("li").querySelector("a");
    summary.setAttribute("aria-label", `Pages below ${link ? link.textContent.trim() : "this one"}`);
  }
  for (const box of document.querySelectorAll(".ml-card, .figure, .output")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0; // so that keys can scroll it
  }
  for (const card of document.querySelectorAll(".sphx-glr-thumbcontainer")) {
    const title = card.querySelector(".sphx-glr-thumbnail-title");
    const link = card.querySelector("p > a");
    if (title && link) link.setAttribute("aria-label", title.textContent.trim());
  }
});
