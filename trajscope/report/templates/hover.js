"use strict";
{
  const figure = document.getElementById("run"), data = JSON.parse(document.getElementById("values").textContent);
  const line = document.getElementById("line"), out = document.getElementById("readout"), shown = data.channels.map(() => true);
  const nearest = (xs, x) => {
    let low = 0, high = xs.length - 1;
    while (high - low > 1) { const middle = (low + high) >> 1; if (xs[middle] <= x) low = middle; else high = middle; }
    return x - xs[low] <= xs[high] - x ? low : high;
  };
  const tell = (share) => {
    const step = data.low + share * (data.high - data.low);
    line.style.left = `${100 * (data.left + share * (data.right - data.left))}%`;
    line.hidden = false;
    out.textContent = `step ${Math.round(step).toLocaleString("en")}: ` + data.channels.map((c, k) =>
      shown[k] && c.x.length ? `${c.name} ${c.y[nearest(c.x, step)].toPrecision(4)}` : "").filter(Boolean).join(" · ");
  };
  let at = 0;
  figure.addEventListener("pointermove", (event) => {
    const box = figure.getBoundingClientRect(), x = (event.clientX - box.left) / box.width;
    at = Math.min(1, Math.max(0, (x - data.left) / (data.right - data.left)));
    tell(at);
  });
  figure.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -0.005, ArrowRight: 0.005, Home: -1, End: 1 }[event.key];
    if (move === undefined) return;
    event.preventDefault();
    tell(at = Math.min(1, Math.max(0, at + move)));
  });
  const choice = document.getElementById("choice");
  choice.hidden = false;
  data.channels.forEach((c, k) => {
    const label = document.createElement("label"), box = document.createElement("input");
    box.type = "checkbox";
    box.checked = true;
    box.addEventListener("change", () => {
      shown[k] = box.checked;
      figure.querySelector(`#axes_${k + 1}`).style.visibility = box.checked ? "" : "hidden";
    });
    label.append(box, ` ${c.name}`);
    choice.append(label);
  });
}
