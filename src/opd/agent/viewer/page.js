"use strict";
// Filters the conversations of the page: by score, by errors, and by words that occur in them.

(() => {
  const of = (id) => document.getElementById(id);
  const scores = { all: () => true, full: (score) => score >= 1, part: (score) => score > 0 && score < 1, none: (score) => score <= 0 };
  const texts = new Map(); // each conversation's, once it was searched
  const groups = [...document.querySelectorAll("section")].map((box) => ({ box, talks: [...box.querySelectorAll("details")] }));

  function text(talk) {
    if (!texts.has(talk)) texts.set(talk, talk.textContent.toLowerCase());
    return texts.get(talk);
  }

  function filter() {
    const words = of("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const isWanted = scores[of("score").value];
    let num = 0;
    for (const { box, talks } of groups) {
      for (const talk of talks) {
        talk.hidden = !isWanted(Number(talk.dataset.score)) || (of("failed").checked && !("failed" in talk.dataset))
          || !words.every((word) => text(talk).includes(word));
        num += !talk.hidden;
      }
      box.hidden = talks.every((talk) => talk.hidden);
    }
    of("count").textContent = `${num} shown`;
  }

  let timer = 0;
  of("search").addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(filter, 150);
  });
  of("score").addEventListener("change", filter);
  of("failed").addEventListener("change", filter);
  of("open").addEventListener("click", () => {
    const shown = groups.flatMap(({ talks }) => talks).filter((talk) => !talk.hidden);
    const isOpen = shown.some((talk) => !talk.open);
    for (const talk of shown) talk.open = isOpen;
  });
  of("filters").hidden = false;
})();
