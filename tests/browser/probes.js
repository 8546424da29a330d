// What tests ask a page, by name: `probe.overlaps("#canvas text")`.
window.probe = {
  // Pairs of elements whose rectangles meet by more than `slack` pixels in both directions.
  meeting(elements, slack) {
    const boxes = elements.map(e => ({ text: e.textContent || e.parentNode.dataset.id, r: e.getBoundingClientRect() })).sort((a, b) => a.r.left - b.r.left);
    const found = [];
    for (let i = 0; i < boxes.length; i++)
      for (let j = i + 1; j < boxes.length && boxes[j].r.left < boxes[i].r.right - slack; j++)
        if (Math.min(boxes[i].r.bottom, boxes[j].r.bottom) - Math.max(boxes[i].r.top, boxes[j].r.top) > slack) found.push([boxes[i].text, boxes[j].text]);
    return found;
  },

  // Texts that lie over each other; two units of the drawing may be shared, for letters are lower than their lines.
  overlaps(selector) {
    const scale = selector.startsWith("#canvas") ? d3.zoomTransform(document.getElementById("canvas")).k : 1;
    return this.meeting([...document.querySelectorAll(selector)].filter(t => t.textContent.trim()), 2 * scale);
  },

  // Closed boxes that lie over each other, and boxes that stick out of the frame around them.
  boxes() {
    const k = d3.zoomTransform(document.getElementById("canvas")).k, found = this.meeting([...document.querySelectorAll("#canvas g.box:not(.open) > rect")], k);
    for (const [id, place] of graphView.places) {
      const frame = graphView.places.get(place.box.parent);
      if (frame && (Math.abs(place.x - frame.x) + place.width / 2 > frame.width / 2 + 1 || Math.abs(place.y - frame.y) + place.height / 2 > frame.height / 2 + 1)) found.push([id, frame.id]);
    }
    return found;
  },

  // Texts around the drawing that lie over each other or stick out of the window.
  crowded() {
    const shown = [...document.querySelectorAll("header h1, header #summary > span, header button, #tools > *, #legend span")].filter(e => e.offsetParent !== null);
    return this.meeting(shown, 1).concat(shown.filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => [e.textContent, "window"]));
  },

  // A point near the top of a box, after it was brought into view. Units: pixels of the window.
  place(id) {
    graphView.reveal(id);
    const r = document.querySelector(`#canvas g.box[data-id="${id}"] > rect`).getBoundingClientRect();
    return [r.left + r.width / 2, r.top + Math.min(r.height / 2, 12)];
  },

  // Whether the chosen box lies inside the drawing's window.
  chosenIsSeen() {
    const r = document.querySelector("#canvas g.box.chosen > rect").getBoundingClientRect(), c = document.getElementById("graph").getBoundingClientRect();
    return r.left > c.left && r.right < c.right && r.top > c.top && r.bottom < c.bottom;
  },

  // Every box open, inputs and weights drawn.
  openAll() {
    graphView.showInputs = true;
    graphView.open = new Set([...page.p.boxes.values()].filter(b => b.children.length).map(b => b.id));
    graphView.draw();
    return document.querySelectorAll("#canvas g.box").length;
  },

  side() { return document.getElementById("side").innerText; },
  count(selector) { return document.querySelectorAll(selector).length; },
};
true;
