"use strict";
// Shows what the server sends of the sections that have changed, and whether it sends anything.
(() => {
  const link = document.getElementById("link");
  const say = (text, kind) => {
    if (link.textContent !== text) {
      link.textContent = text;
      link.className = "badge " + kind;
    }
    link.hidden = false;
  };
  const source = new EventSource("events");
  source.onopen = () => say("live", "good");
  source.onerror = () => say(source.readyState === EventSource.CLOSED ? "closed: load the page again" : "ironwarp web does not answer", "bad");
  source.onmessage = (message) => {
    const part = JSON.parse(message.data);
    const section = document.getElementById(part.ID);
    if (!section) return;
    // A table that was scrolled stays where it was.
    const left = [...section.querySelectorAll(".scroll")].map((box) => box.scrollLeft);
    section.innerHTML = part.HTML;
    section.querySelectorAll(".scroll").forEach((box, i) => { box.scrollLeft = left[i] || 0; });
  };
})();
