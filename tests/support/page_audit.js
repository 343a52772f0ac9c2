// What is wrong on the page that is shown, as texts; nothing where all is well. Run by page_audit.py.
const canvas = document.createElement("canvas");
const paint = canvas.getContext("2d", { willReadFrequently: true });
const rgba = (colour) => { // of any notation
  paint.clearRect(0, 0, 1, 1);
  paint.fillStyle = colour;
  paint.fillRect(0, 0, 1, 1);
  const [r, g, b, a] = paint.getImageData(0, 0, 1, 1).data;
  return [r, g, b, a / 255];
};
const over = (top, under) => [0, 1, 2].map((at) => top[at] * top[3] + under[at] * (1 - top[3])).concat(1);
const upwards = (one) => (one ? [one, ...upwards(one.parentElement)] : []);
const behind = (one) => upwards(one).map((each) => rgba(getComputedStyle(each).backgroundColor)).reverse()
  .reduce((under, top) => over(top, under), [255, 255, 255, 1]);
const luminance = (colour) => colour.slice(0, 3).map((value) => value / 255)
  .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
  .reduce((sum, value, at) => sum + value * [0.2126, 0.7152, 0.0722][at], 0);
const contrast = (one, other) => {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
};
const seen = (one) => one.checkVisibility({ visibilityProperty: true }) && !one.closest(".unseen, .skip");
const name = (one) => `${one.localName}.${one.getAttribute("class") ?? one.id} “${one.textContent.trim().slice(0, 30)}”`;
const found = new Set();

// WCAG 1.4.3: text against what is behind it; what cannot be used at present need not be read.
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (texts.nextNode()) {
  const one = texts.currentNode.parentElement;
  if (!texts.currentNode.data.trim() || !seen(one) || one.closest("option, noscript, :disabled")) continue;
  const style = getComputedStyle(one);
  const [r, g, b, a] = rgba(one instanceof SVGElement ? style.fill : style.color);
  const opacity = upwards(one).reduce((product, each) => product * getComputedStyle(each).opacity, a);
  const size = parseFloat(style.fontSize);
  const ratio = contrast(over([r, g, b, opacity], behind(one)), behind(one));
  if (ratio < (size >= 24 || (size >= 18.66 && style.fontWeight >= 700) ? 3 : 4.5)) found.add(`contrast ${ratio.toFixed(2)}: ${name(one)}`);
}
// WCAG 1.4.11: the edge of a field against what is around it, and 1.4.3 again: its placeholder.
for (const one of document.querySelectorAll("input[type=search], input:not([type]), textarea, select")) {
  if (!seen(one)) continue;
  if (contrast(rgba(getComputedStyle(one).borderTopColor), behind(one.parentElement)) < 3) found.add(`edge: ${name(one)}`);
  const [text, under] = [rgba(getComputedStyle(one, "::placeholder").color), behind(one)];
  if (one.placeholder && contrast(over(text, under), under) < 4.5) found.add(`placeholder: ${one.placeholder}`);
}
// WCAG 1.4.10: nothing but tables is scrolled sideways, and no text is wider than its place.
if (document.documentElement.scrollWidth > document.documentElement.clientWidth) found.add(`${document.documentElement.scrollWidth} pixels wide`);
for (const one of document.querySelectorAll("body *")) {
  const style = getComputedStyle(one);
  if (one instanceof SVGElement || !seen(one) || style.display === "inline" || style.textOverflow === "ellipsis" || one.childElementCount) continue;
  if (!["auto", "scroll"].includes(style.overflowX) && one.clientWidth && one.scrollWidth > one.clientWidth + 1) found.add(`too narrow: ${name(one)}`);
}
// WCAG 2.5.8: what is clicked is 24 pixels in each direction, or that far from the next.
const targets = [...document.querySelectorAll("a[href], button, input, select, textarea, summary")].map((one) => one.closest("label") ?? one)
  .filter(seen).map((one) => [one, one.getBoundingClientRect()]);
const middle = (box) => [box.left + box.width / 2, box.top + box.height / 2];
for (const [one, box] of targets) {
  if (Math.min(box.width, box.height) >= 23.5) continue;
  const [x, y] = middle(box);
  const near = targets.some(([other, its]) => other !== one && !other.contains(one) && Math.hypot(
    Math.max(its.left - x, 0, x - its.right), Math.max(its.top - y, 0, y - its.bottom)) < 12);
  if (near) found.add(`target ${Math.round(box.width)}×${Math.round(box.height)}: ${name(one)}`);
}
// Headings that skip no level, and identities that are unique.
const levels = [...document.querySelectorAll("h1, h2, h3, h4, h5")].filter((one) => one.checkVisibility());
if (levels.filter((one) => one.localName === "h1").length !== 1) found.add("not one h1");
levels.forEach((one, at) => { if (at && one.localName[1] - levels[at - 1].localName[1] > 1) found.add(`level skipped: ${name(one)}`); });
const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
ids.forEach((id, at) => { if (ids.indexOf(id) !== at) found.add(`id twice: ${id}`); });
// Letters of a chart that lie on each other, or outside of it.
for (const svg of document.querySelectorAll(".plot > svg")) {
  const boxes = [...svg.querySelectorAll("text")].map((one) => [one.textContent, one.getBoundingClientRect()]).filter(([, box]) => box.width);
  const [place, panel] = [svg.getBoundingClientRect(), svg.closest("figure").dataset.panel];
  boxes.forEach(([text, a], at) => {
    if (a.left < place.left - 1 || a.right > place.right + 1) found.add(`outside of ${panel}: ${text}`);
    for (const [other, b] of boxes.slice(at + 1)) {
      if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 2 && b.top < a.bottom - 2) found.add(`overlap in ${panel}: ${text}, ${other}`);
    }
  });
}
return [...found];
