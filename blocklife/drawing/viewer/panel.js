// @ts-check
/* What stands beside the lanes: the selected step in words, the diagram of its machine, the legend; and the start of it all. */

// --- words ---------------------------------------------------------------------------------------------------------------

/** @param {string} text @param {string} action */
const button = (text, action) => `<button type="button" data-go="${safe(action)}">${safe(text)}</button>`;

/** The panel of the selected step. */
function tell() {
  const panel = find("panel");
  if (seen.lane < 0) {
    panel.innerHTML = `<p class="faint">Click a lane to see what happened there: which step led to this state, its guard,
      the job, and which other step caused it.</p>`;
    return;
  }
  const lane = seen.lane;
  const step = seen.selected;
  const name = run.placeName(lane, step);
  const first = run.first[lane];
  const rank = step < 0 ? first - 1 : run.rank[step];
  const steps = run.first[lane + 1] - first;
  const parts = [
    `<h2><span>${safe(name)}</span>`,
    `<button type="button" data-go="back" ${rank <= first ? "disabled" : ""} aria-label="previous step">◀</button>`,
    `<button type="button" data-go="on" ${rank + 1 >= first + steps ? "disabled" : ""} aria-label="next step">▶</button></h2>`,
  ];
  const { violation } = run;
  if (violation && violation.step === step && violation.lane === lane) {
    parts.push(`<p class="alarm"><b>Not legal</b> (${safe(violation.rule)}): ${safe(violation.message)}</p>`);
  }
  parts.push("<dl>");
  if (step < 0) parts.push(`<dt>stands</dt><dd>${stateSaid(run.offset[run.machineOf[lane]] + run.startState[lane])}</dd>`);
  else parts.push(...stepSaid(lane, step, rank - first + 1, steps));
  parts.push("</dl>", jobsSaid(lane, step));
  panel.innerHTML = parts.join("");
  const told = step < 0 ? "no step" : `${run.allStates[run.after[rank]].name}, ${rowOf(step).event}, plan ${run.plan[run.commit[step]]}`;
  find("told").textContent = `${name}: ${told}`;
}

/** @param {number} state */
function stateSaid(state) {
  const { name, about, light, dark } = run.allStates[state];
  return `<i class="state" style="background:${look.dark ? dark : light}"></i><b>${safe(name)}</b> <span class="faint">${safe(about)}</span>`;
}

/** @param {number} lane @param {number} step @param {number} at @param {number} of */
function stepSaid(lane, step, at, of) {
  const machine = run.machines[run.machineOf[lane]];
  const row = rowOf(step);
  const commit = run.commit[step];
  const parts = [
    `<dt>step</dt><dd>${at.toLocaleString("en")} of ${of.toLocaleString("en")}, line ${run.line[step].toLocaleString("en")}</dd>`,
    `<dt>commit</dt><dd>n ${run.n[commit].toLocaleString("en")}, plan ${run.plan[commit].toLocaleString("en")}</dd>`,
  ];
  if (run.axes.time) parts.push(`<dt>time</dt><dd>${clock(run.axes.time[commit])}</dd>`);
  if (machine.name === "block") parts.push(`<dt>epoch</dt><dd>${run.epoch[step]}${row.ends ? " (a life ended here)" : ""}</dd>`);
  parts.push(
    `<dt>from</dt><dd>${stateSaid(run.offset[run.machineOf[lane]] + row.from)}</dd>`,
    `<dt>event</dt><dd><b>${safe(row.event)}</b> <span class="faint">${safe(machine.events[row.event] ?? "")}</span></dd>`,
  );
  if (row.guard) {
    parts.push(`<dt>guard</dt><dd id="guard"><b>${safe(row.guard)}</b> <span class="faint">${safe(machine.guards[row.guard] ?? "")}</span></dd>`);
  }
  parts.push(`<dt>to</dt><dd>${stateSaid(run.after[run.rank[step]])}</dd>`);
  if (!row.number) parts.push(`<dt></dt><dd class="alarm">the table has no such row</dd>`);
  else if (run.broken.includes(step)) parts.push(`<dt></dt><dd class="alarm">does not go on from where this place was left</dd>`);
  parts.push(causeSaid(step));
  return parts;
}

/** @param {number} step */
function causeSaid(step) {
  const coupling = run.couplings[run.coupling[step]];
  const cause = run.back[step] ? step - run.back[step] : -1;
  if (cause < 0 && !coupling.name) return `<dt>cause</dt><dd id="cause" class="faint">no other step: a call of its own</dd>`;
  const named = coupling.name ? `<b>${safe(coupling.name)}</b> <span class="faint">${safe(coupling.why)}</span> ` : "";
  const where = cause < 0 ? "" : button(`${run.placeName(run.lane[cause], cause)} ${rowOf(cause).event}`, `step ${cause}`);
  const beside = coupling.name ? "" : ` <span class="faint">beside it</span>`;
  return `<dt>cause</dt><dd id="cause">${named}${where}${beside}</dd>`;
}

/** The job of a step, or what a job touches. @param {number} lane @param {number} step */
function jobsSaid(lane, step) {
  const own = run.machineName(lane) === "job" ? run.id[lane] : 0;
  const number = own || (step >= 0 ? run.job[step] : 0);
  const parts = [];
  const job = run.jobs.get(number);
  if (number && job) {
    const kinds = { block: 0, slot: 0 };
    for (const touch of job.touches) kinds[/** @type {"block" | "slot"} */ (run.machineName(run.touches.lane[touch]))]++;
    const what = `${job.load ? "load" : "store"}, ${job.verdict || "not submitted"}: ${kinds.block} blocks, ${kinds.slot} slots`;
    parts.push(`<p>${own ? "" : `${button(`job ${number}`, `lane job ${number}`)} `}${what} ${button("only this job", `job ${number}`)}</p>`);
    if (job.request >= 0 && job.request !== lane) {
      const whose = job.called ? `request ${job.called} (row ${run.id[job.request]})` : run.laneName(job.request);
      parts.push(`<p>for ${button(whose, `lane ${run.laneName(job.request)}`)}</p>`);
    }
  }
  const refused = (run.refusals.get(lane) ?? []).slice(0, 20);
  for (const each of refused) parts.push(`<p class="faint">refused in plan ${each.plan}: ${safe(each.event)} in ${safe(each.state)} (line ${each.line})</p>`);
  if (run.violation && run.violation.lane === lane) {
    parts.push(`<pre>${safe([...run.violation.history, ...run.violation.places].join("\n"))}</pre>`);
  }
  return parts.join("");
}

/** What a button of the panel or the banner leads to. @param {Event} event */
function follow(event) {
  const go = /** @type {HTMLElement} */ (event.target).closest("[data-go]")?.getAttribute("data-go");
  if (!go) return;
  const [word, ...rest] = go.split(" ");
  if (word === "back") nextStep(-1);
  else if (word === "on") nextStep(1);
  else if (word === "step") goTo(Number(rest[0]));
  else if (word === "job") {
    find("job").value = rest[0];
    readFilters();
  } else if (word === "violation") goToViolation();
  else if (word === "lane") {
    const lane = run.laneOf.get(rest.join(" "));
    if (lane !== undefined) goToLane(lane);
  }
}

function goToViolation() {
  const { violation } = run;
  if (!violation) return;
  const end = run.axes[seen.axis][run.commits];
  const wide = Math.min(seen.to - seen.from, Math.max((end - run.axes[seen.axis][0]) / 20, (seen.to - seen.from) / 50));
  const at = violation.step < 0 ? end : run.axes[seen.axis][run.commit[violation.step]];
  look_at(at - wide * 0.6, at + wide * 0.4);
  if (violation.step >= 0) goTo(violation.step);
  else if (violation.lane >= 0) goToLane(violation.lane);
}

function tellBanner() {
  const banner = find("banner");
  const { violation } = run;
  banner.hidden = !violation && !run.notes.length;
  if (violation) {
    const more = violation.further ? ` ${violation.further.toLocaleString("en")} later transitions do not fit their place.` : "";
    banner.innerHTML = `<p><b>Not legal</b>, line ${violation.line.toLocaleString("en")} (${safe(violation.rule)}): ${safe(violation.message)}.${more}</p>
      ${violation.outside ? "It lies outside the plans that are shown." : button("show it", "violation")}`;
  } else if (run.notes.length) {
    banner.className = "note";
    banner.innerHTML = `<p>${run.notes.map(safe).join(" ")}</p>`;
  }
}

// --- the diagram ---------------------------------------------------------------------------------------------------------

/** @param {number} machine */
function chooseTab(machine) {
  seen.tab = machine;
  const { svg, states, about, name } = run.machines[machine];
  for (const [i, tab] of [...find("tabs").children].entries()) {
    tab.setAttribute("aria-selected", String(i === machine));
    tab.tabIndex = i === machine ? 0 : -1;
  }
  const diagram = find("diagram");
  diagram.innerHTML =
    svg || `<p>${safe(run.undrawn)}</p><ul>${states.map((each) => `<li data-state="${safe(each.name)}"><b>${safe(each.name)}</b> <span>${safe(each.about)}</span></li>`).join("")}</ul>`;
  diagram.setAttribute("aria-label", `${name}: ${about}`);
  find("close").hidden = !svg;
  for (const each of diagram.querySelectorAll("svg [data-state]")) addSwatch(each, states);
}

/** Give a state of a drawing the colour that it has in the lanes. @param {Element} drawn @param {State[]} states */
function addSwatch(drawn, states) {
  const box = drawn.querySelector("rect");
  const state = states.find((each) => each.name === drawn.getAttribute("data-state"));
  if (!box || !state) return;
  const swatch = /** @type {SVGElement} */ (box.cloneNode(false));
  swatch.setAttribute("class", "swatch");
  swatch.setAttribute("x", String(Number(box.getAttribute("x")) - 3));
  swatch.setAttribute("width", "7");
  swatch.setAttribute("rx", "2");
  swatch.setAttribute("style", `fill:${look.dark ? state.dark : state.light}`);
  box.after(swatch);
}

/** Show in the diagram where a place stands, and the row just taken. @param {number} lane @param {number} step */
function highlight(lane, step) {
  const diagram = find("diagram");
  for (const each of diagram.querySelectorAll(".here, .taken")) each.classList.remove("here", "taken");
  if (lane < 0) return;
  const machine = run.machineOf[lane];
  if (machine !== seen.tab) chooseTab(machine);
  const { states, rows } = run.machines[machine];
  const row = step < 0 ? null : rows[run.row[step]];
  const to = states[row ? row.to : run.startState[lane]].name;
  const here = diagram.querySelector(`[data-state="${CSS.escape(to)}"]`);
  here?.classList.add("here");
  if (row?.number) {
    const from = CSS.escape(states[row.from].name);
    diagram.querySelector(`[data-row="${row.number}"]`)?.classList.add("taken");
    diagram.querySelector(`[data-source="${from}"][data-target="${CSS.escape(to)}"]`)?.classList.add("taken");
  }
  if (here && diagram.classList.contains("close")) here.scrollIntoView({ block: "center", inline: "center" });
}

/** All of the diagram, or a part of it in its own size that follows the state. */
function toggleClose() {
  const close = find("diagram").classList.toggle("close");
  find("close").setAttribute("aria-pressed", String(close));
  highlight(seen.lane, seen.selected);
}

// --- the legend ---------------------------------------------------------------------------------------------------------

function makeLegend() {
  const legend = find("legend");
  legend.innerHTML = [...statesByName()]
    .map(([group, states]) => {
      const buttons = [...states].map(([name, { colour, numbers, about }]) => {
        const title = safe(about.join("\n"));
        return `<button type="button" data-keep="${numbers}" title="${title}"><i style="background:${colour}"></i>${safe(name)}</button>`;
      });
      return `<div><span>${safe(group)}</span>${buttons.join("")}</div>`;
    })
    .join("");
  const marks = [`<div><span>marks</span>${markSaid("store", "store")}${markSaid("load", "load")}${markSaid("failed", "failed or given up")}`];
  marks.push(markSaid("life", "a life ends"));
  if (run.refused) marks.push(markSaid("refused", `refused (${run.refused})`));
  if (run.violation) marks.push(markSaid("alarm", "not legal"));
  legend.insertAdjacentHTML("beforeend", `${marks.join("")}</div>`);
  markLegend();
}

/** The states of each machine alone, then those whose name, and so whose colour, several machines have. */
function statesByName() {
  const named = new Map();
  run.machines.forEach((machine, i) => {
    machine.states.forEach((state, k) => {
      const one = named.get(state.name) ?? { colour: look.dark ? state.dark : state.light, numbers: [], about: [], of: [] };
      one.numbers.push(run.offset[i] + k);
      one.about.push(`${machine.name}: ${state.about}`);
      one.of.push(machine.name);
      named.set(state.name, one);
    });
  });
  const groups = new Map([...run.machines.map((machine) => machine.name), "several"].map((group) => [group, new Map()]));
  for (const [name, state] of named) groups.get(state.of.length > 1 ? "several" : state.of[0]).set(name, state);
  for (const [group, states] of groups) if (!states.size) groups.delete(group);
  return groups;
}

/** The states that a button of the legend stands for, by number. @param {Element} button */
function kept(button) {
  return String(button.getAttribute("data-keep")).split(",").map(Number);
}

/** A mark as it stands in the lanes. @param {string} kind @param {string} text */
function markSaid(kind, text) {
  const { store, load, ink, alarm } = look;
  const drawing = {
    store: `<rect y="4" width="26" height="4" fill="${store}"/>`,
    load: `<path d="M.5 4.5h25v3h-25z" fill="none" stroke="${load}"/><rect y="4" width="3" height="4" fill="${load}"/>`,
    failed: [0, 5, 10, 15, 20].map((x) => `<rect x="${x}" y="4" width="2.5" height="4" fill="${store}"/>`).join(""),
    life: `<rect x="12" width="1.5" height="12" fill="${ink}"/>`,
    refused: `<path d="M13 1.5l4.5 4.5-4.5 4.5L8.5 6z" fill="none" stroke="${ink}" stroke-width="1.5"/>`,
    alarm: `<path d="M6 0h14l-7 11z" fill="${alarm}"/>`,
  }[kind];
  return `<span class="mark"><svg width="26" height="12" aria-hidden="true">${drawing}</svg> ${text}</span>`;
}

function markLegend() {
  for (const each of document.querySelectorAll("[data-keep]")) {
    each.setAttribute("aria-pressed", String(kept(each).every((state) => seen.keep.has(state))));
  }
}

// --- start ---------------------------------------------------------------------------------------------------------------

function start() {
  document.title = `${run.name} · blocklife`;
  find("name").textContent = run.name;
  find("about").textContent = run.about;
  readLook();
  makeLegend();
  listenToControls();
  listenToPointer();
  listenToKeys();
  tellBanner();
  tell();
  chooseTab(0);
  [seen.from, seen.to] = limits();
  readLook(); // the legend and the banner have taken their room
  layOut();
  chooseAxis("commits");
  const again = () => {
    readLook();
    makeLegend();
    tell();
    layOut();
  };
  new ResizeObserver(again).observe(find("stage"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  requestAnimationFrame(() => requestAnimationFrame(() => document.body.setAttribute("data-ready", String(performance.now()))));
}

start();
