// Optional: opens links to Airflow's pages outside of the frame, and makes charts interactive.
(() => {
  "use strict";

  // Airflow shows the pages in a frame that may not navigate the window.
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-out]");
    if (!link || window.parent === window || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const outside = window.parent.document.createElement("a");
    outside.href = link.href;
    window.parent.document.body.append(outside);
    outside.click();
    outside.remove();
  });

  const units = ["", "k", "M", "G", "T"];
  const short = (value) => {
    let step = 0;
    while (Math.abs(value) >= 1000 && step < units.length - 1) { value /= 1000; step += 1; }
    return `${+value.toFixed(1)}${units[step]}`;
  };
  // A canvas does not support light-dark(), so use the colour that the page computes.
  const computed = (name) => {
    const probe = document.createElement("span");
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    const value = getComputedStyle(probe).color;
    probe.remove();
    return value;
  };

  const draw = (figure) => {
    const svg = figure.querySelector("svg");
    const points = JSON.parse(figure.dataset.points);
    // Show days as 11-23, or times of day if all points are within two days.
    const times = points[0];
    const isShort = times[times.length - 1] - times[0] < 2 * 86400;
    const day = (seconds) => new Date(seconds * 1000).toISOString().slice(...(isShort ? [11, 16] : [5, 10]));
    const axis = { stroke: computed("--dim"), grid: { stroke: computed("--line"), width: 1 }, ticks: { show: false } };
    figure.querySelector(".uplot")?.remove();
    // One column per run: no line connects them.
    const shape = "columns" in figure.dataset ? { paths: uPlot.paths.bars({ size: [0.6, 12] }) } : {};
    const chart = new uPlot({
      width: figure.clientWidth - 24,
      height: 150,
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      scales: { y: { range: (self, low, high) => [0, high || 1] } },
      axes: [{ ...axis, space: 60, size: 30, values: (self, ticks) => ticks.map(day) }, { ...axis, size: 56, values: (self, ticks) => ticks.map(short) }],
      series: [
        { label: "at", value: "{YYYY}-{MM}-{DD} {HH}:{mm}" },
        { label: figure.dataset.unit, stroke: computed("--clean"), width: 2, fill: computed("--clean").replace(/\)$/, " / 0.15)"),
          ...shape, value: (self, value) => (value === null ? "" : value.toLocaleString("en")) },
      ],
    }, points);
    chart.root.setAttribute("aria-hidden", "true");
    svg.after(chart.root);
    svg.classList.add("unseen"); // it keeps the chart's name for screen readers
    figure.querySelector(".axis").style.display = "none";
  };
  const drawAll = () => document.querySelectorAll("figure[data-points]").forEach(draw);

  if (window.uPlot) {
    drawAll();
    let waiting;
    addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(drawAll, 200); });
    addEventListener("storage", drawAll);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  }
})();
