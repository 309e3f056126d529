// Connects the page's buttons and sliders to NiiVue, which draws and scrolls the volumes.
(function () {
  "use strict";
  const host = document.getElementById("viewer");
  const data = JSON.parse(document.getElementById("viewer-data").textContent);
  const canvas = document.getElementById("viewer-canvas");
  const readout = document.getElementById("viewer-readout");
  const bar = document.getElementById("viewer-bar");
  const sliders = Array.from(host.querySelectorAll("input[data-axis]"));
  const opacity = document.getElementById("viewer-opacity");
  const FULL = 0.35; // share of a diverging scale from which its colors are opaque
  const loaded = {};
  const state = { background: "fixed", overlay: "uncertainty", ready: false, frames: 0 };
  let nv = null;
  let queue = Promise.resolve();
  window.reportViewer = state; // for the console and for tests

  function fail(message) {
    host.classList.add("failed");
    readout.textContent = message;
  }

  // One volume, decoded when first wanted.
  async function volume(kind, key) {
    const id = kind + "/" + key;
    if (!loaded[id]) {
      const item = data[kind][key];
      if (item.colors) nv.addColormap("report-" + key, item.colors);
      if (item.negative) nv.addColormap("report-" + key + "-negative", item.negative);
      const image = await niivue.NVImage.loadFromBase64({
        base64: item.data,
        name: key + ".nii.gz",
        colormap: item.colors ? "report-" + key : "gray",
      });
      image.cal_min = item.low;
      image.cal_max = item.high;
      if (item.negative) {
        // Both signs fade out towards zero.
        image.colormapNegative = "report-" + key + "-negative";
        image.colormapType = 2; // ZERO_TO_MAX_TRANSLUCENT_BELOW_MIN, which this build does not export
        image.cal_min = FULL * item.high;
        image.cal_minNeg = -item.high;
        image.cal_maxNeg = -FULL * item.high;
      }
      if (item.labels) image.setColormapLabel(item.labels);
      loaded[id] = image;
    }
    return loaded[id];
  }

  // Requests run one after the other: a quick second click must not overtake the first.
  function refresh() {
    queue = queue.then(async function () {
      const volumes = [await volume("backgrounds", state.background)];
      if (state.overlay !== "none") {
        const image = await volume("overlays", state.overlay);
        image.opacity = Number(opacity.value) / 100;
        volumes.push(image);
      }
      nv.volumes = volumes;
      nv.back = volumes[0];
      nv.overlays = volumes.slice(1);
      nv.updateGLVolume();
      nv.createOnLocationChange();
      showBar();
      state.frames += 1;
    }).catch(function (error) {
      readout.textContent = "This volume could not be shown: " + error.message;
      console.error(error);
    });
    return queue;
  }

  function showBar() {
    const item = state.overlay === "none" ? null : data.overlays[state.overlay];
    bar.hidden = !item || !item.gradient;
    if (bar.hidden) return;
    const unit = item.unit ? " " + item.unit : "";
    bar.querySelector(".ramp").style.background = item.gradient;
    bar.querySelector(".low").textContent = minus(item.low);
    bar.querySelector(".high").textContent = minus(item.high) + unit;
  }

  function minus(value) {
    return String(Number(value.toPrecision(3))).replace("-", "−");
  }

  function showLocation(location) {
    const mm = location.mm;
    let text = "R " + minus(Math.round(mm[0])) + " · A " + minus(Math.round(mm[1])) + " · S " + minus(Math.round(mm[2])) + " mm";
    const item = data.overlays[state.overlay];
    const value = location.values.length > 1 ? location.values[1].value : null;
    if (item && item.labels && value !== null) {
      text += "  |  " + (item.labels.labels[Math.round(value)] || "no label");
    } else if (item && value !== null) {
      const empty = value < item.low && !item.negative;
      text += "  |  " + item.name.toLowerCase() + ": " + (empty ? "–" : minus(value) + (item.unit ? " " + item.unit : ""));
    }
    readout.textContent = text;
    const vox = nv.frac2vox(nv.scene.crosshairPos);
    sliders.forEach(function (slider) { slider.value = vox[Number(slider.dataset.axis)]; });
  }

  function moveTo(mm) {
    nv.scene.crosshairPos = nv.mm2frac(mm);
    nv.createOnLocationChange();
    nv.drawScene();
  }

  function press(group, key) {
    host.querySelectorAll("button[data-" + group + "]").forEach(function (button) {
      button.setAttribute("aria-pressed", String(button.dataset[group] === key));
    });
    state[group] = key;
    return refresh();
  }

  function connect() {
    host.querySelectorAll("button[data-background]").forEach(function (button) {
      button.addEventListener("click", function () { press("background", button.dataset.background); });
    });
    host.querySelectorAll("button[data-overlay]").forEach(function (button) {
      button.addEventListener("click", function () { press("overlay", button.dataset.overlay); });
    });
    document.getElementById("viewer-blink").addEventListener("click", function () {
      press("background", state.background === "fixed" ? "warped" : "fixed");
    });
    const peak = document.getElementById("viewer-peak");
    if (peak) peak.addEventListener("click", function () { moveTo(data.peak); });
    opacity.addEventListener("input", refresh);
    sliders.forEach(function (slider) {
      slider.addEventListener("input", function () {
        const step = [0, 0, 0];
        const axis = Number(slider.dataset.axis);
        step[axis] = Number(slider.value) - nv.frac2vox(nv.scene.crosshairPos)[axis];
        nv.moveCrosshairInVox(step[0], step[1], step[2]);
      });
    });
    // The wheel belongs to the page until someone has clicked into the view.
    canvas.parentElement.addEventListener("wheel", function (event) {
      if (document.activeElement !== canvas) event.stopImmediatePropagation();
    }, { capture: true });
    canvas.addEventListener("pointerdown", function () { canvas.focus({ preventScroll: true }); });
    canvas.addEventListener("keydown", function (event) { if (event.key === "Escape") canvas.blur(); });
  }

  async function start() {
    if (nv) return;
    try {
      nv = new niivue.Niivue({
        logLevel: "error",
        loadingText: "",
        dragAndDropEnabled: false,
        isRadiologicalConvention: false,
        showAllOrientationMarkers: true,
        sagittalNoseLeft: false,
        multiplanarShowRender: 0,
        multiplanarLayout: 3,
        multiplanarPadPixels: 12,
        backColor: [0, 0, 0, 1],
        fontColor: [0.85, 0.85, 0.82, 1],
        crosshairColor: [0.35, 0.8, 0.85, 0.9],
        crosshairWidth: 0.35,
        crosshairGap: 4,
      });
      await nv.attachToCanvas(canvas);
      nv.onLocationChange = showLocation;
      await refresh();
      moveTo(data.start);
      connect();
      state.nv = nv;
      state.ready = true;
      host.classList.add("ready");
    } catch (error) {
      fail("The interactive view could not start: " + error.message);
    }
  }

  const probe = document.createElement("canvas").getContext("webgl2");
  if (!probe) {
    fail("This browser offers no WebGL 2, which the interactive view needs. The slices above show the same result.");
    return;
  }
  const release = probe.getExtension("WEBGL_lose_context");
  if (release) release.loseContext();
  // Graphics start when the view comes near: the page itself opens at once.
  new IntersectionObserver(function (entries, observer) {
    if (entries.some(function (entry) { return entry.isIntersecting; })) {
      observer.disconnect();
      start();
    }
  }, { rootMargin: "400px" }).observe(host);
})();
