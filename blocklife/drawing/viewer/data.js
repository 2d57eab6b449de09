// @ts-check
/* How data flows through this page (data.js, paint.js, page.js and panel.js are put behind one another into one script):
 *
 *   #recording (JSON)  -> Run        columns of numbers, one entry for each step, and one list of steps for each place
 *   Run + axis         -> positions  where each commit stands on the x axis
 *   Run + filters      -> rows       which groups and lanes are shown, from top to bottom
 *   rows + view        -> canvases   states as pixels; bars, names and marks over them; hover and selection on a layer above
 *   pointer and keys   -> view, filters, selection -> the above again, at most once a frame
 *
 * A step is one line of the recording. A lane is one place. A column packs whole numbers: each as its difference to the one
 * before, zigzag, seven bits a byte, base64. Nothing here asks what is legal: that was asked when the page was made.
 */

/**
 * @typedef {{name: string, about: string, initial: boolean, final: boolean, light: string, dark: string}} State
 * @typedef {{event: string, from: number, to: number, guard: string, ends: boolean, number: number}} Row
 * @typedef {{name: string, about: string, states: State[], rows: Row[], events: Record<string, string>,
 *            guards: Record<string, string>, svg: string}} Machine
 * @typedef {{name: string, why: string}} Coupling
 * @typedef {{rule: string, message: string, line: number, step: number, lane: number, outside: boolean,
 *            history: string[], places: string[], further: number}} Violation
 */

/** The numbers of a packed column. @param {string} text @param {number} count @returns {Float64Array} */
function unpack(text, count) {
  const bytes = atob(text);
  const out = new Float64Array(count);
  let at = 0;
  let last = 0;
  for (let i = 0; i < count; i++) {
    let value = 0;
    let unit = 1;
    let byte = 0;
    do {
      byte = bytes.charCodeAt(at++);
      value += (byte & 127) * unit;
      unit *= 128;
    } while (byte > 127);
    last += value % 2 ? -(value + 1) / 2 : value / 2;
    out[i] = last;
  }
  return out;
}

/** The first index from `low` on whose value is above `wanted`. @param {ArrayLike<number>} values @param {number} wanted
 *  @param {number} [low] @param {number} [high] */
function above(values, wanted, low = 0, high = values.length) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] > wanted) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** Everything that the page knows of a run. */
class Run {
  /** @param {any} said what Python wrote */
  constructor(said) {
    this.name = /** @type {string} */ (said.name);
    this.about = /** @type {string} */ (said.about);
    this.notes = /** @type {string[]} */ (said.notes);
    this.undrawn = /** @type {string} why there are lists of states instead of diagrams */ (said.undrawn);
    this.machines = /** @type {Machine[]} */ (said.machines);
    this.couplings = /** @type {Coupling[]} */ (said.couplings);
    this.violation = /** @type {Violation | null} */ (said.violation);
    this._readSteps(said.steps);
    this._readLanes(said.lanes);
    this._readNames(said.names);
    this._readTouches(said.touches);
    this._readRefusals(said.refusals);
    this.broken = Uint32Array.from(unpack(said.broken.step, said.broken.count));
    this.axes = this._makeAxes(said.times);
    this._countStates();
  }

  /** @param {any} said */
  _readSteps(said) {
    const count = (this.count = said.count);
    /** @param {string} key */
    const column = (key) => Uint32Array.from(unpack(said[key], count));
    this.line = column("line");
    this.lane = column("lane");
    this.row = column("row");
    this.job = column("job");
    this.epoch = column("epoch");
    this.coupling = column("coupling");
    this.back = Int32Array.from(unpack(said.cause, count)); // its cause stands so many steps before it; 0: none is told
    const n = column("n");
    const plan = column("plan");
    const commit = (this.commit = new Uint32Array(count));
    /** @type {number[]} */
    const ns = [];
    /** @type {number[]} */
    const plans = [];
    for (let i = 0; i < count; i++) {
      if (i === 0 || n[i] !== n[i - 1]) {
        ns.push(n[i]);
        plans.push(plan[i]);
      }
      commit[i] = ns.length - 1;
    }
    this.n = Float64Array.from(ns);
    this.plan = Float64Array.from(plans);
    this.commits = ns.length;
  }

  /** @param {any} said */
  _readLanes(said) {
    const lanes = (this.lanes = said.count);
    /** @param {string} key */
    const column = (key) => Uint32Array.from(unpack(said[key], lanes));
    this.machineOf = Uint8Array.from(unpack(said.machine, lanes));
    this.id = column("id");
    this.startState = Uint16Array.from(unpack(said.start, lanes));
    this.startEpoch = column("epoch");
    this.born = column("born"); // the step with which it comes to be, from 1; 0: it was there before
    // All steps of lane L, in order: steps[first[L]] to steps[first[L + 1] - 1].
    const first = (this.first = new Uint32Array(lanes + 1));
    for (let i = 0; i < this.count; i++) first[this.lane[i] + 1]++;
    for (let i = 0; i < lanes; i++) first[i + 1] += first[i];
    const next = first.slice();
    const steps = (this.steps = new Uint32Array(this.count));
    const rank = (this.rank = new Uint32Array(this.count));
    for (let i = 0; i < this.count; i++) {
      rank[i] = next[this.lane[i]]++;
      steps[rank[i]] = i;
    }
    /** @type {Map<string, number>} */
    this.laneOf = new Map();
    for (let i = 0; i < lanes; i++) this.laneOf.set(`${this.machines[this.machineOf[i]].name} ${this.id[i]}`, i);
    this.states = this.machines.map((machine) => machine.states.length);
    this.offset = this.states.map((_, i) => this.states.slice(0, i).reduce((sum, each) => sum + each, 0));
    this.allStates = this.machines.flatMap((machine) => machine.states);
    // The state (by its number among all states) after each step, in the order of `steps`.
    const after = (this.after = new Uint16Array(this.count));
    for (let i = 0; i < this.count; i++) {
      const machine = this.machineOf[this.lane[i]];
      after[rank[i]] = this.offset[machine] + this.machines[machine].rows[this.row[i]].to;
    }
  }

  /** What requests are called. A row of them is used again, so that a name is one of a step. @param {any} said */
  _readNames(said) {
    const [lane, step, word] = ["lane", "step", "word"].map((key) => unpack(said[key], said.count));
    /** @type {Map<number, string>} */
    this.nameOf = new Map(); // of a step; of what stood before the first one of a lane by -1 - lane
    /** @type {Map<number, Set<string>>} */
    this.namesOf = new Map(); // of a lane
    for (let i = 0; i < said.count; i++) {
      const name = said.words[word[i]];
      this.nameOf.set(step[i] ? step[i] - 1 : -1 - lane[i], name);
      const names = this.namesOf.get(lane[i]);
      if (names) names.add(name);
      else this.namesOf.set(lane[i], new Set([name]));
    }
  }

  /** Which job touched which place, from which step to which. @param {any} said */
  _readTouches(said) {
    const count = said.count;
    /** @param {string} key */
    const column = (key) => Uint32Array.from(unpack(said[key], count));
    this.touches = {
      count,
      lane: column("lane"),
      job: column("job"),
      begin: column("begin"), // a step, from 1; 0: before the first
      end: column("end"), // a step, from 1; 0: not at all
      load: Uint8Array.from(unpack(said.load, count)),
    };
    const first = (this.firstTouch = new Uint32Array(this.lanes + 1)); // they come sorted by lane
    for (let i = 0; i < count; i++) first[this.touches.lane[i] + 1]++;
    for (let i = 0; i < this.lanes; i++) first[i + 1] += first[i];
    /** @type {Map<number, {load: boolean, touches: number[], request: number, called: string, verdict: string}>} */
    this.jobs = new Map();
    for (let i = 0; i < count; i++) {
      const job = this.touches.job[i];
      const known = this.jobs.get(job);
      if (known) known.touches.push(i);
      else this.jobs.set(job, { load: this.touches.load[i] === 1, touches: [i], request: -1, called: "", verdict: "" });
    }
    for (let i = 0; i < this.lanes; i++) {
      const name = this.machineName(i);
      for (let k = this.first[i]; k < this.first[i + 1]; k++) {
        const job = this.jobs.get(name === "job" ? this.id[i] : this.job[this.steps[k]]);
        if (job && name === "request") [job.request, job.called] = [i, this.nameOf.get(this.steps[k]) ?? ""];
        if (job && name === "job") job.verdict = this.allStates[this.after[k]].name;
      }
    }
  }

  /** @param {any} said */
  _readRefusals(said) {
    const count = said.count;
    const [lane, before, line, plan, event, state] = ["lane", "before", "line", "plan", "event", "state"].map((key) =>
      unpack(said[key], count),
    );
    /** @type {Map<number, {before: number, line: number, plan: number, event: string, state: string}[]>} */
    this.refusals = new Map();
    this.refused = count;
    for (let i = 0; i < count; i++) {
      const told = { before: before[i], line: line[i], plan: plan[i], event: said.words[event[i]], state: said.words[state[i]] };
      const known = this.refusals.get(lane[i]);
      if (known) known.push(told);
      else this.refusals.set(lane[i], [told]);
    }
  }

  /** Where each commit stands on each axis; one more entry says where the last one ends. @param {any} times
   *  @returns {Record<string, Float64Array>} */
  _makeAxes(times) {
    const commits = new Float64Array(this.commits + 1);
    for (let i = 0; i < this.commits; i++) commits[i] = this.n[i];
    commits[this.commits] = this.commits ? this.n[this.commits - 1] + 1 : 1;
    /** @type {Record<string, Float64Array>} */
    const axes = { commits, plans: spread(this.plan, 1) };
    if (times.count) {
      const ns = unpack(times.ns, times.count);
      const step = unpack(times.step, times.count); // the first step at this time
      const told = new Float64Array(this.commits);
      let k = -1;
      for (let i = 0; i < this.count; i++) {
        while (k + 1 < times.count && step[k + 1] <= i) k++;
        if (i === 0 || this.commit[i] !== this.commit[i - 1]) told[this.commit[i]] = k < 0 ? 0 : ns[k];
      }
      axes.time = spread(told, Infinity);
    }
    return axes;
  }

  /** Counts of all states at every SAMPLE-th step, so that a count anywhere needs few steps; and the most that ever were busy. */
  _countStates() {
    const width = this.allStates.length;
    this.isBusy = Uint8Array.from(this.allStates, (state) => Number(!state.initial && !state.final));
    const counts = new Int32Array(width);
    for (let i = 0; i < this.lanes; i++) counts[this.offset[this.machineOf[i]] + this.startState[i]]++;
    this.samples = /** @type {Int32Array[]} */ ([]);
    const busy = this.machines.map((_, machine) => this.busy(counts, machine));
    this.most = busy.slice(); // of places that are not at rest, behind any commit
    for (let i = 0; i < this.count; i++) {
      if (i % Run.SAMPLE === 0) this.samples.push(counts.slice());
      const machine = this.machineOf[this.lane[i]];
      busy[machine] += this.apply(counts, i);
      // A commit is of one machine, and is seen as a whole.
      const whole = i + 1 === this.count || this.commit[i + 1] !== this.commit[i];
      if (whole && busy[machine] > this.most[machine]) this.most[machine] = busy[machine];
    }
  }

  /** Let one step change the counts; how many more places are busy then. @param {Int32Array} counts @param {number} step */
  apply(counts, step) {
    const before = this.stateBefore(step);
    const after = this.after[this.rank[step]];
    counts[before]--;
    counts[after]++;
    return this.isBusy[after] - this.isBusy[before];
  }

  /** Places of a machine that are neither in its initial nor in a final state. @param {Int32Array} counts
   *  @param {number} machine */
  busy(counts, machine) {
    let sum = 0;
    const offset = this.offset[machine];
    for (let i = offset; i < offset + this.states[machine]; i++) if (this.isBusy[i]) sum += counts[i];
    return sum;
  }

  /** The state in which a place stood before a step. @param {number} step */
  stateBefore(step) {
    const lane = this.lane[step];
    const rank = this.rank[step];
    return rank > this.first[lane] ? this.after[rank - 1] : this.offset[this.machineOf[lane]] + this.startState[lane];
  }

  /** @param {number} lane */
  machineName(lane) {
    return this.machines[this.machineOf[lane]].name;
  }

  /** @param {number} lane */
  laneName(lane) {
    return `${this.machineName(lane)} ${this.id[lane]}`;
  }

  /** A lane in words, at one of its steps: a request by its name, as far as that is known. @param {number} lane
   *  @param {number} [step] -1: before the first one that is shown */
  placeName(lane, step = -1) {
    const name = this.nameOf.get(step < 0 ? -1 - lane : step);
    return name === undefined ? this.laneName(lane) : `${this.machineName(lane)} ${name} (row ${this.id[lane]})`;
  }

  /** The lanes of a request, by its name or else by its row, with the name; null where there is none. @param {string} text
   *  @returns {{lanes: Set<number>, called: string} | null} */
  findRequest(text) {
    const lanes = new Set([...this.namesOf].filter(([, names]) => names.has(text)).map(([lane]) => lane));
    if (lanes.size) return { lanes, called: text };
    const [, row] = /^(?:request|row)?\s*(\d+)$/i.exec(text) ?? [];
    const lane = row === undefined ? undefined : this.laneOf.get(`request ${Number(row)}`);
    return lane === undefined ? null : { lanes: new Set([lane]), called: "" };
  }

  /** The latest step of a lane at or before a commit, as its place in `steps`; -1 where it has taken none.
   *  @param {number} lane @param {number} commit */
  latest(lane, commit) {
    let low = this.first[lane];
    let high = this.first[lane + 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.commit[this.steps[middle]] > commit) high = middle;
      else low = middle + 1;
    }
    return low > this.first[lane] ? low - 1 : -1;
  }
}

/** So many steps lie between two counts of all states. */
Run.SAMPLE = 2048;

/** Positions that only rise: commits with the same value share the way to the next one. @param {Float64Array} values
 *  @param {number} widest */
function spread(values, widest) {
  const count = values.length;
  const out = new Float64Array(count + 1);
  const mean = count ? (values[count - 1] - values[0]) / count || 1 : 1;
  let i = 0;
  while (i < count) {
    let stop = i;
    while (stop < count && values[stop] === values[i]) stop++;
    const width = Math.min(widest, stop < count ? values[stop] - values[i] : widest === Infinity ? mean : widest);
    for (let k = i; k < stop; k++) out[k] = values[i] + (width * (k - i)) / (stop - i);
    out[stop] = values[i] + width;
    i = stop;
  }
  if (!count) out[0] = 1;
  return out;
}
