// @ts-check
/* Painting. Everything here is a function of a run and of what is to be seen of it; nothing here listens or remembers.
 *
 * States are written as pixels into one image: a pixel on which several steps fall takes the state that lasted longest in it,
 * so that the price is that of the steps in sight, and a run of one state is one fill. All else is drawn over it.
 */

/**
 * @typedef {{kind: "group" | "sum" | "lane", machine: number, lane: number, y: number, height: number}} Shown
 * @typedef {{run: Run, positions: Float64Array, axis: string, from: number, to: number, rows: Shown[], scroll: number,
 *            keep: Set<number>, job: number, folded: Set<number>}} Scene
 * @typedef {{width: number, height: number, scale: number, dark: boolean, ink: string, faint: string, rule: string,
 *            ground: string, panel: string, alarm: string, store: string, load: string, font: string}} Look
 */

const GUTTER = 118;
const RULER = 24;
const HEADING = 22;
const GIVEN_UP = new Set(["FAILED", "CANCELLED", "UNWANTED", "QUARANTINED"]);

/** A colour as one pixel of an image. @param {string} colour @param {string} ground @param {number} strength */
function pixel(colour, ground, strength) {
  /** @param {number} i */
  const mix = (i) => {
    const [over, under] = [colour, ground].map((each) => parseInt(each.slice(1 + 2 * i, 3 + 2 * i), 16));
    return Math.round(over * strength + under * (1 - strength));
  };
  return ((255 << 24) | (mix(2) << 16) | (mix(1) << 8) | mix(0)) >>> 0;
}

/** Black or white, whichever is read better on a colour. @param {string} colour */
function inkOn(colour) {
  const [r, g, b] = [1, 3, 5].map((i) => (parseInt(colour.slice(i, i + 2), 16) / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.2 ? "#10141a" : "#ffffff";
}

/** The pixel of every state, paler where states are filtered and it is not among them. @param {Scene} scene
 *  @param {Look} look */
function statePixels(scene, look) {
  return Uint32Array.from(scene.run.allStates, (state, i) =>
    pixel(look.dark ? state.dark : state.light, look.ground, scene.keep.size && !scene.keep.has(i) ? 0.12 : 1),
  );
}

/** The whole of the lanes in sight. @param {CanvasRenderingContext2D} context @param {Scene} scene @param {Look} look */
function paintLanes(context, scene, look) {
  const wide = Math.round((look.width - GUTTER) * look.scale);
  const high = Math.round((look.height - RULER) * look.scale);
  if (wide <= 0 || high <= 0) return;
  const shown = inSight(scene, look);
  const image = context.createImageData(wide, high);
  const pixels = new Uint32Array(image.data.buffer);
  pixels.fill(pixel(look.ground, look.ground, 1));
  const colours = statePixels(scene, look);
  const line = new Uint32Array(wide);
  for (const row of shown) {
    if (row.kind !== "lane") continue;
    paintLane(line, scene, row.lane, colours, pixel(look.ground, look.ground, 1));
    const gap = row.height > 4 ? 1 : 0;
    const top = Math.max(0, Math.round((row.y - scene.scroll) * look.scale));
    const end = Math.min(high, Math.round((row.y - scene.scroll + row.height - gap) * look.scale));
    for (let y = top; y < end; y++) pixels.set(line, y * wide);
  }
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.fillStyle = look.ground;
  context.fillRect(0, 0, context.canvas.width, context.canvas.height);
  context.putImageData(image, Math.round(GUTTER * look.scale), Math.round(RULER * look.scale));
  context.setTransform(look.scale, 0, 0, look.scale, 0, 0);
  context.save();
  context.beginPath();
  context.rect(GUTTER, RULER, look.width - GUTTER, look.height - RULER);
  context.clip();
  for (const row of shown) {
    const y = row.y - scene.scroll + RULER;
    if (row.kind === "lane") paintOver(context, scene, look, row, y);
    else if (row.kind === "sum") paintStack(context, scene, look, row.machine, GUTTER, y, look.width - GUTTER, row.height - 2);
  }
  context.restore();
  paintGutter(context, scene, look, shown);
  paintRuler(context, scene, look);
}

/** The rows that can be seen. @param {Scene} scene @param {Look} look */
function inSight(scene, look) {
  const bottom = scene.scroll + look.height - RULER;
  let low = 0;
  let high = scene.rows.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (scene.rows[middle].y + scene.rows[middle].height > scene.scroll) high = middle;
    else low = middle + 1;
  }
  let stop = low;
  while (stop < scene.rows.length && scene.rows[stop].y < bottom) stop++;
  return scene.rows.slice(low, stop);
}

/** One pixel row of one lane. @param {Uint32Array} line @param {Scene} scene @param {number} lane @param {Uint32Array} colours
 *  @param {number} ground */
function paintLane(line, scene, lane, colours, ground) {
  const { run, positions, from, to, keep } = scene;
  const wide = line.length;
  const scale = wide / (to - from);
  line.fill(ground);
  const last = run.first[lane + 1];
  let k = firstAfter(scene, lane, from);
  const birth = run.born[lane] ? positions[run.commit[run.born[lane] - 1]] : -Infinity;
  let start = Math.max(0, (birth - from) * scale);
  let state = k > run.first[lane] ? run.after[k - 1] : run.offset[run.machineOf[lane]] + run.startState[lane];
  const end = Math.min(wide, (positions[run.commits] - from) * scale);
  let best = 0; // the longest stay within the pixel of `start`
  let colour = ground;
  while (start < end) {
    const stop = k < last ? Math.min(end, (positions[run.commit[run.steps[k]]] - from) * scale) : end;
    if (stop > start) {
      const left = Math.floor(start);
      const right = Math.floor(stop);
      const bonus = keep.has(state) ? 1 : 0;
      const inside = Math.min(stop, left + 1) - start + bonus;
      if (inside > best) [best, colour] = [inside, colours[state]];
      if (right > left) {
        line[left] = colour;
        if (right > left + 1) line.fill(colours[state], left + 1, Math.min(right, wide));
        [best, colour] = [stop - right + bonus, colours[state]];
      } else if (stop >= end) line[left] = colour;
      start = stop;
    }
    if (k >= last || stop >= end) break;
    state = run.after[k++];
  }
  if (start % 1 && Math.floor(start) < wide) line[Math.floor(start)] = colour;
}

/** The first step of a lane that stands right of a position, as its place in `steps`. @param {Scene} scene @param {number} lane
 *  @param {number} position */
function firstAfter(scene, lane, position) {
  const { run, positions } = scene;
  let low = run.first[lane];
  let high = run.first[lane + 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (positions[run.commit[run.steps[middle]]] > position) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** Ends of lives, steps that change no state, names of states, bars of jobs and marks of one lane.
 *  @param {CanvasRenderingContext2D} context @param {Scene} scene @param {Look} look @param {Shown} row @param {number} y */
function paintOver(context, scene, look, row, y) {
  const { run, positions, from, to } = scene;
  const lane = row.lane;
  const scale = (look.width - GUTTER) / (to - from);
  const { rows } = run.machines[run.machineOf[lane]];
  const last = run.first[lane + 1];
  const stop = firstAfter(scene, lane, to);
  const start = firstAfter(scene, lane, from) - 1;
  let ticked = -Infinity;
  const several = (run.namesOf.get(lane)?.size ?? 0) > 1; // else the gutter has the name
  /** @param {number} number @param {number} rank @param {number} end */
  const name = (number, rank, end) => {
    if (number < 0 || row.height < 12) return;
    const called = several ? (run.nameOf.get(rank < 0 ? -1 - lane : run.steps[rank]) ?? "") : "";
    const epoch = fresh && run.machineName(lane) === "block" ? (rank < 0 ? run.startEpoch[lane] : run.epoch[run.steps[rank]]) : -1;
    paintName(context, scene, look, row, y, number, epoch < 0 ? called : `e${epoch}`, left, end);
  };
  let fresh = true; // the stretch is the first of its life that is seen
  const born = run.born[lane] ? positions[run.commit[run.born[lane] - 1]] : from;
  let left = GUTTER + Math.max(0, born - from) * scale; // where the stretch of one state in one life begins
  let previous = start < run.first[lane] ? run.offset[run.machineOf[lane]] + run.startState[lane] : -1;
  for (let k = Math.max(run.first[lane], start); k < stop; k++) {
    const step = run.steps[k];
    const x = GUTTER + (positions[run.commit[step]] - from) * scale;
    const { ends } = rows[run.row[step]];
    if (ends || run.after[k] !== previous) {
      name(previous, k > run.first[lane] ? k - 1 : -1, x);
      fresh = ends || (fresh && (previous < 0 || x <= GUTTER));
      left = x;
      previous = run.after[k];
    } else if (row.height >= 8 && x - ticked >= 6) {
      context.fillStyle = look.ink;
      context.globalAlpha = 0.4;
      context.fillRect(Math.round(x), y, 1, 3);
      context.globalAlpha = 1;
      ticked = x;
      continue;
    }
    if (ends && row.height > 4 && x - ticked >= 3) {
      context.fillStyle = look.ink;
      context.fillRect(Math.round(x) - 1, y, 1.5, row.height - 1);
      ticked = x;
    }
  }
  const end = stop < last ? GUTTER + (positions[run.commit[run.steps[stop]]] - from) * scale : x2(scene, look);
  name(previous, stop > run.first[lane] ? stop - 1 : -1, end);
  paintTouches(context, scene, look, row, y);
  paintMarks(context, scene, look, row, y);
}

/** The epoch, or whose it is, and the state of a stretch of a lane, as far as there is room. @param {CanvasRenderingContext2D} context
 *  @param {Scene} scene @param {Look} look @param {Shown} row @param {number} y @param {number} number of the state
 *  @param {string} life empty: not told here @param {number} left @param {number} right */
function paintName(context, scene, look, row, y, number, life, left, right) {
  let at = Math.max(left, GUTTER) + 4;
  const end = Math.min(right, look.width) - 3;
  if (end - at < 14) return;
  const state = scene.run.allStates[number];
  const middle = y + (row.height - 1) / 2 + (row.height < 16 ? 0 : -1.5);
  context.font = look.font;
  context.textBaseline = "middle";
  context.fillStyle = scene.keep.size && !scene.keep.has(number) ? look.faint : inkOn(look.dark ? state.dark : state.light);
  if (life && !state.initial) {
    if (textWidth(context, life) > end - at) return;
    context.globalAlpha = 0.7;
    context.fillText(life, at, middle);
    context.globalAlpha = 1;
    at += textWidth(context, life) + 5;
  }
  if (textWidth(context, state.name) <= end - at) context.fillText(state.name, at, middle);
}

/** Where the run ends on the canvas. @param {Scene} scene @param {Look} look */
function x2(scene, look) {
  const { positions, run, from, to } = scene;
  return GUTTER + ((positions[run.commits] - from) * (look.width - GUTTER)) / (to - from);
}

/** @type {Map<string, number>} */
const widths = new Map();

/** @param {CanvasRenderingContext2D} context @param {string} text */
function textWidth(context, text) {
  let width = widths.get(text);
  if (width === undefined) widths.set(text, (width = context.measureText(text).width));
  return width;
}

/** The jobs of a place, as bars at the foot of its lane: a store is full, a load is a frame with its first end full; what did not
 *  end well is hatched. @param {CanvasRenderingContext2D} context @param {Scene} scene @param {Look} look @param {Shown} row
 *  @param {number} y */
function paintTouches(context, scene, look, row, y) {
  const { run, positions, from, to } = scene;
  const { touches } = run;
  const scale = (look.width - GUTTER) / (to - from);
  const high = row.height >= 20 ? 4 : row.height >= 9 ? 3 : 2;
  if (row.height < 6) return;
  const top = y + row.height - 1 - high;
  const end = positions[run.commits];
  let drawn = -Infinity;
  for (let i = run.firstTouch[row.lane]; i < run.firstTouch[row.lane + 1]; i++) {
    const begin = touches.begin[i] ? positions[run.commit[touches.begin[i] - 1]] : positions[0];
    if (begin > to) break;
    const stop = touches.end[i] ? positions[run.commit[touches.end[i] - 1]] : end;
    if (stop < from) continue;
    const left = Math.max(GUTTER - 4, GUTTER + (begin - from) * scale);
    const right = Math.min(look.width + 4, GUTTER + (stop - from) * scale);
    if (right - drawn < 0.7) continue;
    drawn = Math.max(left + 1, right);
    const wide = Math.max(1, right - left);
    const verdict = run.jobs.get(touches.job[i])?.verdict ?? "";
    const bad = GIVEN_UP.has(verdict);
    context.globalAlpha = scene.job && scene.job !== touches.job[i] ? 0.2 : 1;
    context.fillStyle = look.ground;
    context.fillRect(left, top - 1, wide, high + 1);
    const colour = touches.load[i] ? look.load : look.store;
    context.fillStyle = colour;
    if (bad && wide >= 5) {
      for (let at = left; at < right; at += 5) context.fillRect(at, top, Math.min(2.5, right - at), high);
    } else if (touches.load[i] && wide >= 5) {
      context.fillRect(left, top, 3, high);
      context.fillRect(left, top, wide, 1);
      context.fillRect(left, top + high - 1, wide, 1);
      context.fillRect(right - 1, top, 1, high);
    } else context.fillRect(left, top, wide, high);
    if (row.height >= 20 && wide > 60) {
      const label = `${touches.load[i] ? "load" : "store"} ${touches.job[i]}`;
      context.font = look.font;
      const at = (Math.max(left, GUTTER) + Math.min(right, look.width) - textWidth(context, label)) / 2;
      context.fillStyle = look.ground;
      context.fillRect(at - 4, top + high - 11, textWidth(context, label) + 8, 11);
      context.fillStyle = colour;
      context.textBaseline = "middle";
      context.fillText(label, at, top + high - 5);
    }
    context.globalAlpha = 1;
  }
}

/** What was refused, and what does not fit. @param {CanvasRenderingContext2D} context @param {Scene} scene @param {Look} look
 *  @param {Shown} row @param {number} y */
function paintMarks(context, scene, look, row, y) {
  const { run } = scene;
  const middle = y + (row.height - 1) / 2;
  for (const each of run.refusals.get(row.lane) ?? []) {
    const at = refusalX(scene, look, each.before);
    if (at < GUTTER - 6 || at > look.width + 6) continue;
    const size = Math.min(4.5, row.height / 2);
    context.beginPath();
    context.moveTo(at, middle - size);
    context.lineTo(at + size, middle);
    context.lineTo(at, middle + size);
    context.lineTo(at - size, middle);
    context.closePath();
    context.fillStyle = look.ground;
    context.fill();
    context.strokeStyle = look.ink;
    context.lineWidth = 1.5;
    context.stroke();
  }
  if (!run.violation) return;
  for (const step of brokenOf(run, row.lane)) {
    const at = stepX(scene, look, step);
    context.fillStyle = look.alarm;
    if (at > GUTTER - 2 && at < look.width) context.fillRect(at - 1, y, 2, row.height - 1);
  }
  if (run.violation.lane === row.lane && !run.violation.outside) {
    const at = violationX(scene, look);
    context.fillStyle = look.alarm;
    context.strokeStyle = look.ground;
    context.lineWidth = 1;
    context.fillRect(at - 1.5, y - 1, 3, row.height + 1);
    context.beginPath();
    context.moveTo(at - 7, y - 2);
    context.lineTo(at + 7, y - 2);
    context.lineTo(at, y + Math.min(10, row.height));
    context.closePath();
    context.fill();
    context.stroke();
  }
}

/** @type {WeakMap<Run, Map<number, number[]>>} */
const brokenLanes = new WeakMap();

/** Steps of a lane that do not go on from where it was left. @param {Run} run @param {number} lane */
function brokenOf(run, lane) {
  let known = brokenLanes.get(run);
  if (!known) {
    known = new Map();
    for (const step of run.broken) {
      const steps = known.get(run.lane[step]);
      if (steps) steps.push(step);
      else known.set(run.lane[step], [step]);
    }
    brokenLanes.set(run, known);
  }
  return known.get(lane) ?? [];
}

/** @param {Scene} scene @param {Look} look @param {number} step */
function stepX(scene, look, step) {
  const { run, positions, from, to } = scene;
  return GUTTER + ((positions[run.commit[step]] - from) * (look.width - GUTTER)) / (to - from);
}

/** A refusal stands where the step behind it begins. @param {Scene} scene @param {Look} look @param {number} before */
function refusalX(scene, look, before) {
  return before < scene.run.count ? stepX(scene, look, before) : x2(scene, look);
}

/** @param {Scene} scene @param {Look} look */
function violationX(scene, look) {
  const step = scene.run.violation?.step ?? -1;
  return step < 0 ? x2(scene, look) : stepX(scene, look, step);
}

/** How many places stood in each state in each of `wide` columns, when most of them were busy: no peak is lost between two
 *  pixels. @param {Scene} scene @param {number} machine @param {number} wide */
function counted(scene, machine, wide) {
  const { run, positions, from, to } = scene;
  const offset = run.offset[machine];
  const width = run.states[machine];
  const out = new Uint32Array(wide * width);
  /** @param {number} position */
  const stepsUntil = (position) => {
    const commit = above(positions, position, 0, run.commits);
    return commit >= run.commits ? run.count : above(run.commit, commit - 1);
  };
  let step = stepsUntil(from);
  const sample = Math.min(run.samples.length - 1, Math.floor(step / Run.SAMPLE));
  const counts = run.samples[sample].slice();
  for (let i = sample * Run.SAMPLE; i < step; i++) run.apply(counts, i);
  let busy = run.busy(counts, machine);
  for (let x = 0; x < wide; x++) {
    const right = from + ((to - from) * (x + 1)) / wide;
    let most = -1;
    const note = () => {
      if (busy <= most) return;
      most = busy;
      for (let i = 0; i < width; i++) out[x * width + i] = counts[offset + i];
    };
    note();
    while (step < run.count && positions[run.commit[step]] <= right) {
      const commit = run.commit[step];
      while (step < run.count && run.commit[step] === commit) {
        const more = run.apply(counts, step);
        if (run.machineOf[run.lane[step++]] === machine) busy += more;
      }
      note();
    }
  }
  return out;
}

/** The number of places in each state over time, one above the other; those at rest are left out.
 *  @param {CanvasRenderingContext2D} context @param {Scene} scene @param {Look} look @param {number} machine
 *  @param {number} left @param {number} top @param {number} wide @param {number} high */
function paintStack(context, scene, look, machine, left, top, wide, high) {
  const { run } = scene;
  const columns = Math.max(1, Math.floor(wide));
  const counts = counted(scene, machine, columns);
  const states = run.machines[machine].states;
  const width = states.length;
  const unit = high / Math.max(1, run.most[machine]);
  const height = new Float64Array(columns);
  for (let i = 0; i < width; i++) {
    if (states[i].initial || states[i].final) continue;
    context.fillStyle = look.dark ? states[i].dark : states[i].light;
    context.globalAlpha = scene.keep.size && !scene.keep.has(run.offset[machine] + i) ? 0.15 : 1;
    context.beginPath();
    for (let x = 0; x < columns; x++) {
      const count = counts[x * width + i];
      if (!count) continue;
      const tall = count * unit;
      context.rect(left + x, top + high - height[x] - tall, 1.02, tall);
      height[x] += tall;
    }
    context.fill();
  }
  context.globalAlpha = 1;
}

/** As much of a text as fits. @param {CanvasRenderingContext2D} context @param {string} text @param {number} wide */
function shortened(context, text, wide) {
  const signs = [...text];
  while (signs.length > 1 && textWidth(context, `${signs.join("")}…`) > wide) signs.pop();
  return signs.join("").length < text.length && textWidth(context, text) > wide ? `${signs.join("")}…` : text;
}

/** The names of the lanes. @param {CanvasRenderingContext2D} context @param {Scene} scene @param {Look} look
 *  @param {Shown[]} shown */
function paintGutter(context, scene, look, shown) {
  const { run } = scene;
  context.fillStyle = look.panel;
  context.fillRect(0, 0, GUTTER, look.height);
  context.save();
  context.beginPath();
  context.rect(0, RULER, look.width, look.height - RULER);
  context.clip();
  context.textBaseline = "middle";
  let free = -Infinity;
  for (const row of shown) {
    const y = row.y - scene.scroll + RULER;
    if (row.kind === "group") {
      context.fillStyle = look.panel;
      context.fillRect(0, y, look.width, row.height);
      context.fillStyle = look.rule;
      context.fillRect(0, y, look.width, 1);
      context.fillStyle = look.ink;
      context.font = `600 ${look.font}`;
      const name = run.machines[row.machine].name;
      context.fillText(`${scene.folded.has(row.machine) ? "▸" : "▾"} ${name}s`, 8, y + row.height / 2 + 1);
      context.font = look.font;
      context.fillStyle = look.faint;
      context.fillText(row.lane.toLocaleString("en"), 78, y + row.height / 2 + 1);
      free = -Infinity;
    } else if (row.kind === "sum") {
      context.fillStyle = look.faint;
      context.fillText(`at most ${run.most[row.machine].toLocaleString("en")}`, 22, y + row.height / 2);
    } else if (y >= free || run.violation?.lane === row.lane) {
      context.font = look.font;
      context.fillStyle = run.violation?.lane === row.lane ? look.alarm : look.faint;
      let name = run.laneName(row.lane);
      const job = run.machineName(row.lane) === "job" ? run.jobs.get(run.id[row.lane]) : undefined;
      if (job) name += job.load ? " load" : " store";
      const names = run.namesOf.get(row.lane);
      if (names) name = names.size > 1 ? `row ${run.id[row.lane]}, ${names.size} in turn` : shortened(context, [...names][0], GUTTER - 28);
      context.fillText(name, 22, y + (row.height - 1) / 2 + 0.5);
      free = y + 12;
    }
  }
  context.restore();
  context.fillStyle = look.rule;
  context.fillRect(GUTTER - 1, 0, 1, look.height);
}

/** The axis. @param {CanvasRenderingContext2D} context @param {Scene} scene @param {Look} look */
function paintRuler(context, scene, look) {
  context.fillStyle = look.panel;
  context.fillRect(0, 0, look.width, RULER);
  context.fillStyle = look.rule;
  context.fillRect(0, RULER - 1, look.width, 1);
  context.font = look.font;
  context.textBaseline = "middle";
  context.fillStyle = look.faint;
  context.fillText({ commits: "commit", plans: "plan", time: "time" }[scene.axis] ?? "", 22, RULER / 2);
  const wide = look.width - GUTTER;
  const step = tickStep((scene.to - scene.from) * (90 / wide), scene.axis === "time" ? 0 : 1);
  for (let at = Math.ceil(scene.from / step) * step; at <= scene.to; at += step) {
    const x = GUTTER + ((at - scene.from) / (scene.to - scene.from)) * wide;
    context.fillStyle = look.rule;
    context.fillRect(Math.round(x), RULER - 6, 1, 6);
    context.fillStyle = look.ink;
    const label = said(at, scene.axis, step);
    context.fillText(label, Math.min(x + 4, look.width - context.measureText(label).width - 2), RULER / 2 - 1);
  }
}

/** A round step that is at least `wanted`. @param {number} wanted @param {number} least */
function tickStep(wanted, least) {
  const power = 10 ** Math.floor(Math.log10(wanted));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= wanted) ?? wanted;
  return Math.max(least, step);
}

/** A position in words. @param {number} at @param {string} axis @param {number} [step] */
function said(at, axis, step = 1) {
  if (axis !== "time") return Math.floor(at + 1e-6).toLocaleString("en");
  const [unit, size] = step >= 1e8 ? ["s", 1e9] : step >= 1e5 ? ["ms", 1e6] : step >= 100 ? ["µs", 1e3] : ["ns", 1];
  const digits = Math.max(0, Math.ceil(-Math.log10(step / Number(size)) - 1e-9));
  return `${(at / Number(size)).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })} ${unit}`;
}

/** A time in words, exact enough for a step. @param {number} ns */
function clock(ns) {
  const [size, digits, unit] = ns >= 1e9 ? [1e9, 6, "s"] : ns >= 1e6 ? [1e6, 3, "ms"] : [1e3, 3, "µs"];
  return `${(ns / Number(size)).toFixed(Number(digits))} ${unit}`;
}
