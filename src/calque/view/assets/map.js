// The small map of the whole drawing, and where the window is in it.

const map = document.getElementById("map");

function mapScale() {
  return Math.min(134 / Math.max(1, drawing.w), 134 / Math.max(1, drawing.h));
}

let mapOf = null, mapBase = null;
function drawMap(now) {
  if (!map.offsetParent) return;
  const ratio = window.devicePixelRatio || 1, scale = mapScale();
  if (mapOf !== drawing || mapBase.dark !== state.dark || mapBase.colour !== state.colour) {
    mapOf = drawing;
    mapBase = document.createElement("canvas");
    Object.assign(mapBase, {width: 150 * ratio, height: 150 * ratio, dark: state.dark, colour: state.colour});
    const pen = mapBase.getContext("2d");
    pen.scale(ratio, ratio);
    pen.translate(8 + (134 - drawing.w * scale) / 2, 8 + (134 - drawing.h * scale) / 2);
    for (const box of drawing.boxes) {
      pen.fillStyle = box.open ? ink().frame + "55" : isSimple(box.item) || overlay() ? colourOf(box.item) : composition(box.item)[0]?.[0] ?? ink().soft;
      pen.fillRect(box.x * scale, box.y * scale, Math.max(1, box.w * scale), Math.max(0.7, box.h * scale));
    }
  }
  if (map.width !== mapBase.width) { map.width = mapBase.width; map.height = mapBase.height; }
  const pen = map.getContext("2d");
  pen.setTransform(1, 0, 0, 1, 0, 0);
  pen.clearRect(0, 0, map.width, map.height);
  pen.drawImage(mapBase, 0, 0);
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.translate(8 + (134 - drawing.w * scale) / 2, 8 + (134 - drawing.h * scale) / 2);
  pen.strokeStyle = ink().up;
  pen.lineWidth = 1.4;
  pen.strokeRect(now.left * scale, now.top * scale, (now.right - now.left) * scale, (now.bottom - now.top) * scale);
}

function goOnMap(event) {
  const place = map.getBoundingClientRect(), scale = mapScale();
  const x = (event.clientX - place.left - 8 - (134 - drawing.w * scale) / 2) / scale;
  const y = (event.clientY - place.top - 8 - (134 - drawing.h * scale) / 2) / scale;
  const {width, height} = stage.getBoundingClientRect();
  camera.x = width / 2 - x * camera.scale;
  camera.y = height / 2 - y * camera.scale;
  look();
}

map.addEventListener("pointerdown", event => { map.setPointerCapture(event.pointerId); goOnMap(event); });
map.addEventListener("pointermove", event => { if (event.buttons) goOnMap(event); });
