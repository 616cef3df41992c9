// What is drawn, as a picture: an SVG file that stands alone, or a PNG made of it.

function asSvg() {
  const margin = 24;
  const w = Math.ceil(drawing.w + 2 * margin), h = Math.ceil(drawing.h + 2 * margin);
  const made = shape("svg", {xmlns: SVG, width: w, height: h, viewBox: `${-margin} ${-margin} ${w} ${h}`});
  made.append(shape("title", {}, data.name));
  made.append(shape("rect", {x: -margin, y: -margin, width: w, height: h, fill: ink().ground}), ...closely(drawing.boxes, drawing.wires));
  return new XMLSerializer().serializeToString(made);
}

const fileName = ending => (data.name.replace(/[^\w.-]+/g, "_") || "graph") + ending;

function download(blob, name) {
  const link = element("a", {download: name});
  link.href = URL.createObjectURL(blob);
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function saveSvg() { download(new Blob([asSvg()], {type: "image/svg+xml"}), fileName(".svg")); }

function savePng() {
  const image = new Image();
  const url = URL.createObjectURL(new Blob([asSvg()], {type: "image/svg+xml"}));
  image.onload = () => {
    const scale = Math.min(2, Math.sqrt(6e7 / (image.width * image.height)), 16000 / Math.max(image.width, image.height));
    const canvas = element("canvas", {width: Math.round(image.width * scale), height: Math.round(image.height * scale)});
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    URL.revokeObjectURL(url);
    canvas.toBlob(blob => download(blob, fileName(".png")));
  };
  image.src = url;
}
