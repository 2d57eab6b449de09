// @ts-check
/* The page: what is to be seen (view, filters, selection), who changes it (pointer, keys, forms), and what is told in words. */

/** @param {string} id @returns {any} */
const find = (id) => document.getElementById(id);
/** Text that HTML reads as text. @param {unknown} text */
const safe = (text) => String(text).replace(/[&<>"']/g, (each) => `&#${each.charCodeAt(0)};`);

const run = new Run(JSON.parse(find("recording").textContent));
const HEIGHTS = [3, 5, 8, 12, 16, 22];

const seen = {
  axis: "commits",
  from: 0,
  to: 1,
  scroll: 0,
  height: 4, // which of HEIGHTS
  /** @type {Set<number>} */
  folded: new Set(),
  /** @type {Set<number>} */
  keep: new Set(), // states that are filtered for; empty: all
  /** @type {{places: Map<string, [number, number][]>, job: number, plans: [number, number] | null,
   *          request: {lanes: Set<number>, called: string} | null}} */
  filter: { places: new Map(), job: 0, request: null, plans: null },
  /** @type {Shown[]} */
  rows: [],
  total: 0, // pixels that all rows need
  lanes: 0, // lanes that pass the filters
  selected: -1, // a step
  lane: -1, // the lane of the selection, also where it is no step
  tab: 0,
  cursor: -1, // where the pointer is, in pixels from the left
};

// --- what is in sight ----------------------------------------------------------------------------------------------------

/** @type {Look} */
let look;

function readLook() {
  const style = getComputedStyle(document.documentElement);
  /** @param {string} name */
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const box = find("lanes").getBoundingClientRect();
  look = {
    width: box.width,
    height: box.height,
    scale: window.devicePixelRatio || 1,
    dark: matchMedia("(prefers-color-scheme: dark)").matches,
    ink: colour("ink"),
    faint: colour("faint"),
    rule: colour("rule"),
    ground: colour("ground"),
    panel: colour("panel"),
    alarm: colour("alarm"),
    store: colour("store"),
    load: colour("load"),
    font: '11px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif',
  };
  for (const id of ["lanes", "over"]) fit(find(id), box.width, box.height);
  const overview = find("overview").getBoundingClientRect();
  fit(find("overview"), overview.width, overview.height);
  overviewImage = null;
  widths.clear();
}

/** @param {HTMLCanvasElement} canvas @param {number} wide @param {number} high */
function fit(canvas, wide, high) {
  canvas.width = Math.max(1, Math.round(wide * look.scale));
  canvas.height = Math.max(1, Math.round(high * look.scale));
}

/** @returns {Scene} */
function scene() {
  const { axis, from, to, rows, scroll, keep, folded } = seen;
  return { run, positions: run.axes[axis], axis, from, to, rows, scroll, keep, folded, job: seen.filter.job };
}

/** The whole axis, or the plans that are filtered for. @returns {[number, number]} */
function limits() {
  const positions = run.axes[seen.axis];
  const plans = seen.filter.plans;
  if (!plans) return [positions[0], positions[run.commits]];
  const first = above(run.plan, plans[0] - 1);
  const last = above(run.plan, plans[1]);
  return first < last ? [positions[first], positions[last]] : [positions[0], positions[run.commits]];
}

/** @param {number} from @param {number} to */
function look_at(from, to) {
  const [low, high] = limits();
  const least = Math.max((high - low) / (run.commits * 100), 1e-9);
  const wide = Math.min(high - low, Math.max(least, to - from));
  seen.from = Math.min(Math.max(from, low), high - wide);
  seen.to = seen.from + wide;
  repaint();
}

/** @param {number} factor @param {number} [x] the pixel that stays where it is */
function zoom(factor, x = GUTTER + (look.width - GUTTER) / 2) {
  const at = positionAt(x);
  look_at(at - (at - seen.from) * factor, at + (seen.to - at) * factor);
}

/** @param {number} x */
function positionAt(x) {
  return seen.from + ((x - GUTTER) / (look.width - GUTTER)) * (seen.to - seen.from);
}

/** @param {number} y */
function scrollTo(y) {
  seen.scroll = Math.max(0, Math.min(y, seen.total - (look.height - RULER)));
  find("scroll").scrollTop = seen.scroll;
  repaint();
}

/** Show another axis, and on it the same commits. @param {string} axis */
function chooseAxis(axis) {
  const old = run.axes[seen.axis];
  const fresh = run.axes[axis];
  /** @param {number} position */
  const moved = (position) => {
    const commit = Math.max(0, Math.min(run.commits - 1, above(old, position) - 1));
    const share = (position - old[commit]) / (old[commit + 1] - old[commit] || 1);
    return fresh[commit] + Math.min(1, Math.max(0, share)) * (fresh[commit + 1] - fresh[commit]);
  };
  const [from, to] = [moved(seen.from), moved(seen.to)];
  seen.axis = axis;
  overviewImage = null;
  for (const button of find("axes").children) {
    button.setAttribute("aria-checked", String(button.dataset.axis === axis));
    button.tabIndex = button.dataset.axis === axis ? 0 : -1;
  }
  look_at(from, to);
}

// --- filters -------------------------------------------------------------------------------------------------------------

/** Read "block 17, slot 3-9, job 5"; a machine alone means all of its places. @param {string} text */
function readPlaces(text) {
  const found = /** @type {Map<string, [number, number][]>} */ (new Map());
  let machine = "";
  for (const part of text.split(/[,;]/).map((each) => each.trim()).filter(Boolean)) {
    const [, word, first, last] = /^([a-z]*)\s*(\d*)(?:\s*[-–]\s*(\d+))?$/i.exec(part) ?? [];
    const named = word ? run.machines.find((each) => each.name === word.toLowerCase().replace(/s$/, "")) : undefined;
    machine = named ? named.name : word ? "" : machine;
    if (!machine || (!first && last)) return null;
    const range = first ? [Number(first), Number(last || first)] : [0, Infinity];
    found.set(machine, [...(found.get(machine) ?? []), /** @type {[number, number]} */ (range)]);
  }
  return found;
}

/** The number of a job, 0 where the field is empty, or null where it is neither. @param {string} text */
function readJob(text) {
  const [, number] = /^(?:job)?\s*(\d+)$/i.exec(text.trim()) ?? [];
  return text.trim() === "" ? 0 : number === undefined ? null : Number(number);
}

function readFilters() {
  const range = find("plans").value.trim();
  const [, first, last] = /^(\d+)(?:\s*[-–]\s*(\d+))?$/.exec(range) ?? [];
  const places = readPlaces(find("places").value);
  const job = readJob(find("job").value);
  const wanted = find("request").value.trim();
  const request = wanted ? run.findRequest(wanted) : null;
  /** @type {[number, number] | null} */
  const plans = first === undefined ? null : [Number(first), Number(last ?? first)];
  const least = run.plan[0];
  const most = run.plan[run.commits - 1];
  /** @type {[string, boolean, string][]} */
  const checks = [
    ["places", places !== null, "places are written as: block 17, slot 3-9, job 5, request 2"],
    ["job", job !== null && (job === 0 || run.jobs.has(job)), `no job ${find("job").value.trim()} is in this recording`],
    ["request", !wanted || request !== null, "no such request is in this recording"],
    ["plans", range === "" || (plans !== null && plans[0] <= plans[1] && plans[0] <= most && plans[1] >= least),
      `plans are written as 10-20, from ${least} to ${most}`],
  ];
  let problem = "";
  for (const [id, good, told] of checks) {
    find(id).setAttribute("aria-invalid", String(!good));
    if (!good) problem = told;
  }
  find("problem").textContent = problem;
  if (problem) return;
  const moved = String(seen.filter.plans) !== String(plans);
  /** @param {{lanes: Set<number>, called: string} | null} each */
  const spelt = (each) => (each ? `${[...each.lanes]} ${each.called}` : "");
  const chosen = seen.filter.job !== job || spelt(seen.filter.request) !== spelt(request);
  seen.filter = { places: places ?? new Map(), job: job ?? 0, request, plans };
  if (moved) overviewImage = null;
  if (moved || chosen) [seen.from, seen.to] = stay();
  seen.scroll = 0;
  layOut();
}

/** When the job or the request that is filtered for was there, with some room around it; else the whole.
 *  @returns {[number, number]} */
function stay() {
  const { job, request } = seen.filter;
  const positions = run.axes[seen.axis];
  let [first, last] = [run.commits, -1];
  /** @param {number} step */
  const cover = (step) => {
    first = Math.min(first, run.commit[step]);
    last = Math.max(last, run.commit[step]);
  };
  for (const [number, each] of run.jobs) {
    if (job ? number !== job : !isFor(each, request)) continue;
    for (const touch of each.touches) {
      cover(Math.max(0, run.touches.begin[touch] - 1));
      cover(run.touches.end[touch] ? run.touches.end[touch] - 1 : run.count - 1);
    }
  }
  for (const lane of (job ? null : request?.lanes) ?? []) {
    for (let k = run.first[lane]; k < run.first[lane + 1]; k++) {
      if (!request?.called || run.nameOf.get(run.steps[k]) === request.called) cover(run.steps[k]);
    }
  }
  if (last < 0) return limits();
  const room = Math.max((positions[last] - positions[first]) * 0.3, (positions[run.commits] - positions[0]) / 500);
  return [positions[first] - room, positions[last] + room];
}

/** Whether a job is one of a request. @param {{request: number, called: string}} job
 *  @param {{lanes: Set<number>, called: string} | null} request */
function isFor(job, request) {
  return request !== null && request.lanes.has(job.request) && (!request.called || job.called === request.called);
}

function clearFilters() {
  for (const id of ["places", "job", "request", "plans"]) find(id).value = "";
  seen.keep.clear();
  markLegend();
  readFilters();
}

/** The lanes that are linked to a job or a request; null where neither is filtered for. @returns {Set<number> | null} */
function linked() {
  const { job, request } = seen.filter;
  if (!job && !request) return null;
  const found = new Set(request?.lanes);
  for (const [number, each] of run.jobs) {
    if ((job && number !== job) || (request && !isFor(each, request))) continue;
    for (const touch of each.touches) found.add(run.touches.lane[touch]);
    const own = run.laneOf.get(`job ${number}`);
    if (own !== undefined) found.add(own);
    if (each.request >= 0) found.add(each.request);
  }
  return found;
}

/** Whether a lane is, between two commits, in one of the states that are filtered for. @param {number} lane
 *  @param {number} first @param {number} last */
function stands(lane, first, last) {
  const before = run.latest(lane, first - 1);
  const start = before < 0 ? run.offset[run.machineOf[lane]] + run.startState[lane] : run.after[before];
  if (seen.keep.has(start)) return true;
  for (let k = before < 0 ? run.first[lane] : before + 1; k < run.first[lane + 1]; k++) {
    if (run.commit[run.steps[k]] > last) return false;
    if (seen.keep.has(run.after[k])) return true;
  }
  return false;
}

/** Which rows there are, from top to bottom. */
function layOut() {
  const { places, plans } = seen.filter;
  const first = plans ? above(run.plan, plans[0] - 1) : 0;
  const last = plans ? above(run.plan, plans[1]) - 1 : run.commits - 1;
  const links = linked();
  const groups = run.machines.map(() => /** @type {number[]} */ ([]));
  for (let lane = 0; lane < run.lanes; lane++) {
    const id = run.id[lane];
    if (places.size && !places.get(run.machineName(lane))?.some(([low, high]) => id >= low && id <= high)) continue;
    if (links && !links.has(lane)) continue;
    if (plans) {
      const step = run.latest(lane, last);
      if (step < 0 || run.commit[run.steps[step]] < first) continue;
    }
    if (seen.keep.size && !stands(lane, first, last)) continue;
    groups[run.machineOf[lane]].push(lane);
  }
  const height = HEIGHTS[seen.height];
  let y = 0;
  seen.rows = [];
  /** @param {"group" | "sum" | "lane"} kind @param {number} machine @param {number} lane @param {number} tall */
  const add = (kind, machine, lane, tall) => {
    seen.rows.push({ kind, machine, lane, y, height: tall });
    y += tall;
  };
  groups.forEach((lanes, machine) => {
    if (!lanes.length) return;
    add("group", machine, lanes.length, HEADING);
    if (seen.folded.has(machine)) add("sum", machine, -1, 44);
    else for (const lane of lanes) add("lane", machine, lane, height);
  });
  seen.lanes = groups.reduce((sum, each) => sum + each.length, 0);
  seen.total = y + 8;
  find("size").style.height = `${seen.total}px`;
  find("count").textContent = `${seen.lanes.toLocaleString("en")} of ${run.lanes.toLocaleString("en")} places`;
  find("none").hidden = seen.lanes > 0;
  look_at(seen.from, seen.to);
  scrollTo(seen.scroll);
}

/** @param {number} machine */
function fold(machine) {
  if (!seen.folded.delete(machine)) seen.folded.add(machine);
  layOut();
}

/** @param {number} by */
function resizeLanes(by) {
  const old = HEIGHTS[seen.height];
  seen.height = Math.max(0, Math.min(HEIGHTS.length - 1, seen.height + by));
  seen.scroll *= HEIGHTS[seen.height] / old;
  layOut();
}

// --- painting, at most once a frame --------------------------------------------------------------------------------------

let asked = 0;
let askedOver = 0;
/** @type {HTMLCanvasElement | null} */
let overviewImage = null;
const frame = { painted: 0, slowest: 0, last: 0 };

function repaint() {
  if (asked) return;
  asked = requestAnimationFrame(() => {
    asked = 0;
    const began = performance.now();
    paintLanes(find("lanes").getContext("2d"), scene(), look);
    paintOverview();
    paintHover();
    frame.painted++;
    frame.last = performance.now() - began;
    frame.slowest = Math.max(frame.slowest, frame.last);
  });
}

function repaintHover() {
  askedOver ||= requestAnimationFrame(() => {
    askedOver = 0;
    paintHover();
  });
}

function paintOverview() {
  const canvas = find("overview");
  const context = canvas.getContext("2d");
  const wide = canvas.width / look.scale;
  const high = canvas.height / look.scale;
  const [low, top] = limits();
  if (!overviewImage) {
    overviewImage = document.createElement("canvas");
    fit(overviewImage, wide, high);
    const made = /** @type {CanvasRenderingContext2D} */ (overviewImage.getContext("2d"));
    made.setTransform(look.scale, 0, 0, look.scale, 0, 0);
    made.fillStyle = look.panel;
    made.fillRect(0, 0, wide, high);
    const whole = { ...scene(), from: low, to: top };
    const tall = high / run.machines.length;
    made.font = look.font;
    made.textBaseline = "middle";
    run.machines.forEach((machine, i) => {
      made.fillStyle = look.faint;
      made.fillText(`${machine.name}s`, 22, tall * (i + 0.5));
      const ends = 22 + made.measureText(`${machine.name}s`).width + 6;
      made.textAlign = "right";
      made.fillText(`≤ ${run.most[i].toLocaleString("en")}`, GUTTER - 7, tall * (i + 0.5), GUTTER - 7 - ends); // left of the frame
      made.textAlign = "left";
      made.fillStyle = look.ground;
      made.fillRect(GUTTER, tall * i + 1, wide - GUTTER - 14, tall - 2);
      paintStack(made, whole, look, i, GUTTER, tall * i + 2, wide - GUTTER - 14, tall - 4);
    });
    made.fillStyle = look.alarm;
    const unit = (wide - GUTTER - 14) / (top - low);
    const positions = run.axes[seen.axis];
    for (const step of run.broken) made.fillRect(GUTTER + (positions[run.commit[step]] - low) * unit, high - 4, 1, 4);
    if (run.violation && !run.violation.outside) {
      const at = run.violation.step < 0 ? top : positions[run.commit[run.violation.step]];
      made.fillRect(GUTTER + (at - low) * unit - 1, 0, 2, high);
    }
  }
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.drawImage(overviewImage, 0, 0);
  context.setTransform(look.scale, 0, 0, look.scale, 0, 0);
  const unit = (wide - GUTTER - 14) / (top - low);
  const left = GUTTER + (seen.from - low) * unit;
  const right = GUTTER + (seen.to - low) * unit;
  context.fillStyle = look.ground;
  context.globalAlpha = 0.6;
  context.fillRect(GUTTER, 0, left - GUTTER, high);
  context.fillRect(right, 0, wide - 14 - right, high);
  context.globalAlpha = 1;
  context.strokeStyle = look.ink;
  context.lineWidth = 1.5;
  context.strokeRect(left, 1, Math.max(2, right - left), high - 2);
}

function paintHover() {
  const context = find("over").getContext("2d");
  context.setTransform(look.scale, 0, 0, look.scale, 0, 0);
  context.clearRect(0, 0, look.width, look.height);
  if (seen.cursor >= GUTTER) {
    context.fillStyle = look.faint;
    context.fillRect(Math.round(seen.cursor), RULER - 6, 1, look.height);
  }
  const row = seen.rows.find((each) => each.kind === "lane" && each.lane === seen.lane);
  if (!row) return;
  const y = row.y - seen.scroll + RULER;
  context.save(); // names and ruler are not painted over
  context.beginPath();
  context.rect(0, RULER, look.width, look.height);
  context.clip();
  context.strokeStyle = look.ink;
  context.lineWidth = 1;
  context.strokeRect(0.5, y - 1, look.width - 1, row.height + 1);
  if (seen.selected >= 0) {
    const x = stepX(scene(), look, seen.selected);
    const rank = run.rank[seen.selected];
    const end = rank + 1 < run.first[seen.lane + 1] ? stepX(scene(), look, run.steps[rank + 1]) : x2(scene(), look);
    if (end > GUTTER) {
      const left = Math.max(GUTTER, x);
      context.lineWidth = 2;
      context.strokeStyle = look.ground;
      context.strokeRect(left - 1, y - 3, Math.max(3, end - left) + 2, row.height + 5);
      context.strokeStyle = look.ink;
      context.strokeRect(left, y - 2, Math.max(2, end - left), row.height + 3);
    }
  }
  paintMarks(context, scene(), look, row, y);
  context.restore();
}

// --- hover and selection -------------------------------------------------------------------------------------------------

/** @param {number} y */
function rowAt(y) {
  const at = y - RULER + seen.scroll;
  return y < RULER ? undefined : seen.rows.find((each) => at >= each.y && at < each.y + each.height);
}

/** What lies at a point of a lane: the state there, the step that led to it, and what was refused nearby.
 *  @param {number} lane @param {number} x */
function probe(lane, x) {
  const positions = run.axes[seen.axis];
  const position = positionAt(x + 0.5);
  if (position >= positions[run.commits] || position < positions[0]) return null;
  const commit = above(positions, position, 0, run.commits) - 1;
  const rank = run.latest(lane, commit);
  if (rank < 0 && run.born[lane] && run.commit[run.born[lane] - 1] > commit) return null;
  const state = rank < 0 ? run.offset[run.machineOf[lane]] + run.startState[lane] : run.after[rank];
  const left = positionAt(x - 0.5);
  let crowd = 0;
  for (let k = rank; k >= run.first[lane] && positions[run.commit[run.steps[k]]] > left; k--) crowd++;
  const refused = (run.refusals.get(lane) ?? []).find((each) => Math.abs(refusalX(scene(), look, each.before) - x) < 5);
  return { lane, step: rank < 0 ? -1 : run.steps[rank], state, crowd, refused };
}

/** @param {number} step */
function rowOf(step) {
  return run.machines[run.machineOf[run.lane[step]]].rows[run.row[step]];
}

/** @param {number} x @param {number} y */
function hover(x, y) {
  seen.cursor = x;
  repaintHover();
  const tip = find("tip");
  const row = x >= GUTTER ? rowAt(y) : undefined;
  const found = row?.kind === "lane" ? probe(row.lane, x) : null;
  tip.hidden = !found;
  if (!found) {
    highlight(seen.lane, seen.selected);
    return;
  }
  const state = run.allStates[found.state];
  const parts = [`<b>${safe(run.placeName(found.lane, found.step))}</b> <b>${safe(state.name)}</b><br><span>${safe(state.about)}</span>`];
  if (found.step >= 0) {
    const taken = rowOf(found.step);
    const guard = taken.guard ? ` [${taken.guard}]` : "";
    const epoch = run.machineName(found.lane) === "block" ? `, epoch ${run.epoch[found.step]}` : "";
    const job = run.job[found.step] ? `, job ${run.job[found.step]}` : "";
    const commit = run.commit[found.step];
    parts.push(`since ${safe(taken.event + guard)}${job}`, `<span>plan ${run.plan[commit]}, commit ${run.n[commit]}${epoch}</span>`);
  } else parts.push("<span>no step before this</span>");
  if (found.crowd > 1) parts.push(`<span>${found.crowd} steps lie on this pixel (zoom in)</span>`);
  if (found.refused) parts.push(`refused: ${safe(found.refused.event)} in ${safe(found.refused.state)}`);
  if (run.violation && found.step >= 0 && run.violation.step === found.step) parts.push(`<b class="alarm">not legal</b>`);
  tip.innerHTML = parts.join("<br>");
  const box = tip.getBoundingClientRect();
  tip.style.left = `${x + 16 + box.width > look.width ? Math.max(0, x - box.width - 12) : x + 16}px`;
  tip.style.top = `${y + 16 + box.height > look.height ? Math.max(0, y - box.height - 10) : y + 16}px`;
  highlight(found.lane, found.step);
}

/** @param {number} lane @param {number} step the step, or -1 for the time before the first one */
function select(lane, step) {
  seen.lane = lane;
  seen.selected = step;
  tell();
  highlight(lane, step);
  repaintHover();
}

/** Select a step, and see to it that it is seen. @param {number} step */
function goTo(step) {
  show(run.lane[step]);
  const at = run.axes[seen.axis][run.commit[step]];
  const wide = seen.to - seen.from;
  if (at < seen.from || at > seen.to - wide * 0.02) look_at(at - wide / 2, at + wide / 2);
  select(run.lane[step], step);
}

/** Bring a lane into sight; filters that hide it are cleared. @param {number} lane */
function show(lane) {
  seen.folded.delete(run.machineOf[lane]);
  layOut();
  let row = seen.rows.find((each) => each.kind === "lane" && each.lane === lane);
  if (!row) {
    clearFilters();
    row = seen.rows.find((each) => each.kind === "lane" && each.lane === lane);
  }
  const room = look.height - RULER;
  if (row && (row.y < seen.scroll || row.y + row.height > seen.scroll + room)) scrollTo(row.y - room / 2);
}

/** The step of a lane that is nearest to what is selected now, or its first. @param {number} lane */
function goToLane(lane) {
  const commit = seen.selected >= 0 ? run.commit[seen.selected] : run.commits;
  const rank = Math.max(run.first[lane], run.latest(lane, commit));
  if (rank < run.first[lane + 1]) goTo(run.steps[rank]);
  else {
    show(lane);
    select(lane, -1);
  }
}

/** @param {number} by */
function nextStep(by) {
  const first = run.first[seen.lane];
  const rank = seen.selected >= 0 ? run.rank[seen.selected] + by : by > 0 ? first : -1;
  if (rank >= first && rank < run.first[seen.lane + 1]) goTo(run.steps[rank]);
}

/** @param {number} by */
function nextLane(by) {
  const lanes = seen.rows.filter((each) => each.kind === "lane");
  const at = lanes.findIndex((each) => each.lane === seen.lane);
  const wanted = lanes[Math.max(0, Math.min(lanes.length - 1, at + by))];
  if (!wanted) return;
  const commit = seen.selected >= 0 ? run.commit[seen.selected] : 0;
  const rank = run.latest(wanted.lane, commit);
  show(wanted.lane);
  select(wanted.lane, rank < 0 ? -1 : run.steps[rank]);
}

// --- controls -----------------------------------------------------------------------------------------------------------

function listenToControls() {
  for (const id of ["places", "job", "request", "plans"]) find(id).addEventListener("input", readFilters);
  find("filters").addEventListener("submit", (/** @type {Event} */ event) => event.preventDefault());
  find("clear").addEventListener("click", clearFilters);
  find("in").addEventListener("click", () => zoom(0.5));
  find("out").addEventListener("click", () => zoom(2));
  find("all").addEventListener("click", () => look_at(...limits()));
  find("lower").addEventListener("click", () => resizeLanes(-1));
  find("taller").addEventListener("click", () => resizeLanes(1));
  find("close").addEventListener("click", toggleClose);
  find("panel").addEventListener("click", follow);
  find("banner").addEventListener("click", follow);
  find("legend").addEventListener("click", (/** @type {Event} */ event) => {
    const chosen = /** @type {HTMLElement} */ (event.target).closest("[data-keep]");
    if (!chosen) return;
    const states = kept(chosen);
    const is_kept = states.every((state) => seen.keep.has(state));
    for (const state of states) is_kept ? seen.keep.delete(state) : seen.keep.add(state);
    overviewImage = null;
    markLegend();
    layOut();
  });
  for (const axis of Object.keys(run.axes)) {
    find("axes").insertAdjacentHTML("beforeend", `<button type="button" role="radio" data-axis="${axis}">${axis}</button> `);
  }
  for (const each of find("axes").children) each.addEventListener("click", () => chooseAxis(each.dataset.axis));
  run.machines.forEach((machine, i) => {
    find("tabs").insertAdjacentHTML("beforeend", `<button type="button" role="tab">${safe(machine.name)}</button>`);
    find("tabs").lastElementChild.addEventListener("click", () => chooseTab(i));
  });
  for (const id of ["axes", "tabs"]) {
    find(id).addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      const all = [...find(id).children];
      const next = by && all[(all.indexOf(document.activeElement) + by + all.length) % all.length];
      if (!next) return;
      next.click();
      next.focus();
    });
  }
}

// --- pointer and keys ----------------------------------------------------------------------------------------------------

function listenToPointer() {
  const canvas = /** @type {HTMLCanvasElement} */ (find("lanes"));
  /** @type {Map<number, {x: number, y: number}>} */
  const held = new Map();
  let travelled = 0;
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const unit = event.deltaMode === 1 ? 16 : 1;
    const sideways = event.shiftKey && !event.deltaY ? 0 : event.deltaX;
    if (event.shiftKey || event.offsetX < GUTTER) scrollTo(seen.scroll + (event.deltaY || event.deltaX) * unit);
    else {
      if (event.deltaY) zoom(Math.exp(event.deltaY * unit * (event.ctrlKey ? 0.01 : 0.002)), event.offsetX);
      if (sideways) pan(sideways * unit);
    }
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    canvas.classList.add("held");
    held.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
    travelled = 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    const last = held.get(event.pointerId);
    if (!last) {
      hover(event.offsetX, event.offsetY);
      return;
    }
    const other = [...held].find(([id]) => id !== event.pointerId)?.[1];
    if (other) {
      const before = Math.abs(last.x - other.x);
      const now = Math.abs(event.offsetX - other.x);
      if (before > 8 && now > 8) zoom(before / now, (event.offsetX + other.x) / 2);
    } else {
      pan(last.x - event.offsetX);
      if (Math.abs(last.y - event.offsetY) > 0) scrollTo(seen.scroll + last.y - event.offsetY);
    }
    travelled += Math.abs(last.x - event.offsetX) + Math.abs(last.y - event.offsetY);
    held.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
    find("tip").hidden = true;
  });
  /** @param {PointerEvent} event */
  const release = (event) => {
    const was = held.delete(event.pointerId);
    canvas.classList.toggle("held", held.size > 0);
    if (was && travelled < 4 && event.type === "pointerup") click(event.offsetX, event.offsetY);
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", () => {
    seen.cursor = -1;
    find("tip").hidden = true;
    highlight(seen.lane, seen.selected);
    repaintHover();
  });
  find("scroll").addEventListener("scroll", () => {
    if (Math.abs(find("scroll").scrollTop - seen.scroll) >= 1) scrollTo(find("scroll").scrollTop);
  });
  listenToOverview();
}

/** @param {number} pixels */
function pan(pixels) {
  const by = (pixels / (look.width - GUTTER)) * (seen.to - seen.from);
  look_at(seen.from + by, seen.to + by);
}

/** @param {number} x @param {number} y */
function click(x, y) {
  const row = rowAt(y);
  if (!row) return;
  if (row.kind !== "lane") fold(row.machine);
  else if (x < GUTTER) goToLane(row.lane);
  else {
    const found = probe(row.lane, x);
    if (found) select(row.lane, found.step);
  }
}

function listenToOverview() {
  const canvas = /** @type {HTMLCanvasElement} */ (find("overview"));
  /** @param {PointerEvent} event */
  const move = (event) => {
    if (!event.buttons) return;
    const [low, high] = limits();
    const at = low + ((event.offsetX - GUTTER) / (canvas.clientWidth - GUTTER - 14)) * (high - low);
    const wide = seen.to - seen.from;
    look_at(at - wide / 2, at + wide / 2);
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    move(event);
  });
  canvas.addEventListener("pointermove", move);
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(Math.exp(event.deltaY * 0.002));
  }, { passive: false });
}

function listenToKeys() {
  const page = () => (look.width - GUTTER) / 8;
  /** @type {Record<string, () => void>} */
  const keys = {
    "+": () => zoom(0.5, seen.cursor >= GUTTER ? seen.cursor : undefined),
    "=": () => zoom(0.5, seen.cursor >= GUTTER ? seen.cursor : undefined),
    "-": () => zoom(2, seen.cursor >= GUTTER ? seen.cursor : undefined),
    "0": () => look_at(...limits()),
    "<": () => resizeLanes(-1),
    ">": () => resizeLanes(1),
    ArrowLeft: () => pan(-page()),
    ArrowRight: () => pan(page()),
    ArrowUp: () => scrollTo(seen.scroll - 4 * HEIGHTS[seen.height]),
    ArrowDown: () => scrollTo(seen.scroll + 4 * HEIGHTS[seen.height]),
    PageUp: () => scrollTo(seen.scroll - look.height + RULER),
    PageDown: () => scrollTo(seen.scroll + look.height - RULER),
    Home: () => look_at(limits()[0], limits()[0] + seen.to - seen.from),
    End: () => look_at(limits()[1] - seen.to + seen.from, limits()[1]),
    Enter: selectMiddle,
    "Shift ArrowLeft": () => (seen.lane < 0 ? selectMiddle() : nextStep(-1)),
    "Shift ArrowRight": () => (seen.lane < 0 ? selectMiddle() : nextStep(1)),
    "Shift ArrowUp": () => nextLane(-1),
    "Shift ArrowDown": () => nextLane(1),
    Escape: () => select(-1, -1),
    "/": () => find("places").focus(),
  };
  document.addEventListener("keydown", (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    const typing = target.tagName === "INPUT" || target.getAttribute("role") === "tab" || target.getAttribute("role") === "radio";
    const pressing = event.key === "Enter" && (target.tagName === "BUTTON" || target.tagName === "SUMMARY");
    if (event.ctrlKey || event.metaKey || event.altKey || pressing) return;
    if (typing) {
      if (event.key === "Escape") find("lanes").focus();
      return;
    }
    const act = (event.shiftKey && keys[`Shift ${event.key}`]) || keys[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
}

function selectMiddle() {
  const first = seen.rows.find((each) => each.kind === "lane" && each.y >= seen.scroll);
  if (!first) return;
  const found = probe(first.lane, GUTTER + (look.width - GUTTER) / 2);
  select(first.lane, found ? found.step : -1);
}
